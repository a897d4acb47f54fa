"""Gradient accumulation for tf_keras optimizers; knows nothing of BERT, files or the CLI."""

from bertaccum.accumulation.optimizer import AccumulatingOptimizer, clip_by_global_norm

__all__ = ["AccumulatingOptimizer", "clip_by_global_norm"]
