"""Exact gradient accumulation for Keras 3 optimizers and models, on all of its backends."""

from bertaccum.keras3.batch_normalization import AccumBatchNormalization
from bertaccum.keras3.model import accumulate_gradients
from bertaccum.keras3.optimizer import AccumulatingOptimizer

__all__ = ["AccumBatchNormalization", "AccumulatingOptimizer", "accumulate_gradients"]
