"""Gradient accumulation for tf_keras optimizers; knows nothing of BERT, files or the CLI."""

from bertaccum.accumulation.loss_scale import ScalingAccumulatingOptimizer
from bertaccum.accumulation.optimizer import AccumulatingOptimizer
from bertaccum.accumulation.transforms import AdaptiveClip, ClipByGlobalNorm

__all__ = [
    "AccumulatingOptimizer",
    "AdaptiveClip",
    "ClipByGlobalNorm",
    "ScalingAccumulatingOptimizer",
]
