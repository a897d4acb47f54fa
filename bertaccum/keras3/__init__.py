"""Exact gradient accumulation for Keras 3 optimizers and models, on all of its backends."""

from bertaccum.keras3.accumulating_model import accumulate_gradients
from bertaccum.keras3.accumulating_optimizer import AccumulatingOptimizer
from bertaccum.keras3.batch_statistics import AccumBatchNormalization

__all__ = ["AccumBatchNormalization", "AccumulatingOptimizer", "accumulate_gradients"]
