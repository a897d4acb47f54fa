"""Gradient accumulation for tf_keras optimizers, independent of BERT, files and the CLI."""

from bertaccum.accumulation.batch_normalization import AccumBatchNormalization
from bertaccum.accumulation.batch_normalization_replacement import replace_batch_normalization
from bertaccum.accumulation.model import AccumulatingModel, accumulate_gradients
from bertaccum.accumulation.optimizer import AccumulatingOptimizer, ScalingAccumulatingOptimizer
from bertaccum.accumulation.transforms import AdaptiveClip, ClipByGlobalNorm

__all__ = [
    "AccumBatchNormalization",
    "AccumulatingModel",
    "AccumulatingOptimizer",
    "AdaptiveClip",
    "ClipByGlobalNorm",
    "ScalingAccumulatingOptimizer",
    "accumulate_gradients",
    "replace_batch_normalization",
]
