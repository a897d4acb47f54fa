"""Gradient accumulation for tf_keras optimizers, independent of BERT, files and the CLI."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertaccum.accumulation.batch_normalization import AccumBatchNormalization
    from bertaccum.accumulation.batch_normalization_replacement import replace_batch_normalization
    from bertaccum.accumulation.model import AccumulatingModel, accumulate_gradients
    from bertaccum.accumulation.optimizer import AccumulatingOptimizer, ScalingAccumulatingOptimizer
    from bertaccum.accumulation.transforms import AdaptiveClip, ClipByGlobalNorm

_HOMES = {
    "AccumBatchNormalization": "batch_normalization",
    "AccumulatingModel": "model",
    "AccumulatingOptimizer": "optimizer",
    "AdaptiveClip": "transforms",
    "ClipByGlobalNorm": "transforms",
    "ScalingAccumulatingOptimizer": "optimizer",
    "accumulate_gradients": "model",
    "replace_batch_normalization": "batch_normalization_replacement",
}
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


def __getattr__(name: str) -> Any:
    """Import a public name when it is used: Keras 3 shares `contract`, and needs no TensorFlow."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
