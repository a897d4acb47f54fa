"""Gradient accumulation for tf_keras optimizers; knows nothing of BERT, files or the CLI."""

from bertaccum.accumulation.batch_normalization import AccumBatchNormalization
from bertaccum.accumulation.loss_scale import ScalingAccumulatingOptimizer
from bertaccum.accumulation.optimizer import AccumulatingOptimizer
from bertaccum.accumulation.replacement import replace_batch_normalization
from bertaccum.accumulation.transforms import AdaptiveClip, ClipByGlobalNorm

__all__ = [
    "AccumBatchNormalization",
    "AccumulatingOptimizer",
    "AdaptiveClip",
    "ClipByGlobalNorm",
    "ScalingAccumulatingOptimizer",
    "replace_batch_normalization",
]
