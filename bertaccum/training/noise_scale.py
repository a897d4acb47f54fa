"""The gradient noise scale, estimated from the gradients of consecutive windows.

The noise scale is the noise divided by the signal: the trace of the covariance of single examples'
gradients, divided by the squared norm of their mean. Batches much smaller than this number need
proportionally more updates; batches much larger need proportionally more examples.

Source: McCandlish, Kaplan, Amodei et al. 2018, "An Empirical Model of Large-Batch Training".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bertaccum.accumulation.gradient_products import GradientProducts, weight_of_last
from bertaccum.bert.model_source import HEAD_LAYER
from bertaccum.data.windows import updates_per_epoch

_ALL = "all"
# Weight of an update in the smoothed values, relative to the update after it.
_DECAY = 0.99


def gradient_products(
    variables: Sequence[tf.Variable], grouped: bool
) -> tuple[GradientProducts, list[str]]:
    """Return an observer for the optimizer, and the names of the groups that it distinguishes."""
    if not grouped:
        return GradientProducts([0] * len(variables)), [_ALL]
    of = [
        "head" if HEAD_LAYER in v.name else "embeddings" if "embedding" in v.name else "encoder"
        for v in variables
    ]
    names = list(dict.fromkeys(of))
    return GradientProducts([names.index(name) for name in of]), names


def effective_size(weights: np.ndarray) -> float:
    """Return how many examples of equal weights have a mean with as much noise."""
    squares = float(np.square(weights, dtype=np.float64).sum())
    return float(weights.sum(dtype=np.float64)) ** 2 / squares if squares else 0.0


def noise_and_signal(
    square: float, product: float, size: float, population: int, same_epoch: float
) -> tuple[float, float] | None:
    """Return unbiased estimates of noise and signal from one window, or None without information.

    With N examples from a population of M, noise t and signal g, the squared norm of the mean
    gradient is expected to be g + t (M - N) / (N (M - 1)). Its product with the mean gradient of
    another window is expected to be g; but g - t / (M - 1) in the same epoch, where the windows
    have no example in common. The estimates solve these two equations.

    Args:
      square: Squared norm of the window's mean gradient.
      product: Inner product with the mean gradient of earlier windows.
      size: `effective_size` of the window.
      population: Number of examples in an epoch, from which windows are drawn without replacement.
      same_epoch: Fraction of the earlier gradients' weight that belongs to the window's epoch.
    """
    others = population - 1
    left = (population - size) / size + same_epoch if size else 0.0
    if left <= 0 or not np.isfinite([square, product]).all():
        return None
    noise = (square - product) * others / left
    return noise, product + same_epoch * noise / others


class NoiseMeter:
    """The noise scale of a run, smoothed over its updates.

    Args:
      examples: Number of examples in an epoch.
      target_batch: Number of examples in a window.
      names: Names of the groups of weights that `gradient_products` returned.

    Attributes:
      sums: Exponentially weighted sums of noise and signal, by group, for checkpoints.
    """

    def __init__(self, examples: int, target_batch: int, names: Sequence[str] = ()) -> None:
        self.names = names
        self._examples = examples
        self._windows = updates_per_epoch(examples, target_batch)
        self.sums: dict[str, list[float]] = {}

    def add(self, update: int, weights: np.ndarray, results: dict[str, Any]) -> dict[str, Any]:
        """Add an update, and return the fields of `Updated` about noise; empty if unknown.

        Args:
          update: Number of the update, counted from 0.
          weights: Weights of the window's examples in the loss, [examples].
          results: Results of the update.
        """
        if "gradient_square" not in results or not results["applied"] or not update:
            return {}
        same_epoch = weight_of_last(update % self._windows, update)
        size = effective_size(weights)
        values = zip(results["gradient_square"], results["gradient_product"], strict=True)
        groups = {}
        for name, of_group in zip(self.names, values, strict=True):
            if (found := noise_and_signal(*of_group, size, self._examples, same_epoch)) is None:
                return {}
            groups[name] = found
        if len(groups) > 1:
            noises, signals = zip(*groups.values(), strict=True)
            groups[_ALL] = sum(noises), sum(signals)
        scales = {name: self._smoothed(name, own) for name, own in groups.items()}
        noise, signal = groups[_ALL]
        return {
            "gradient_noise": noise,
            "gradient_signal": signal,
            "noise_scale": scales.pop(_ALL),
            "noise_scales": scales or None,
        }

    def _smoothed(self, name: str, found: tuple[float, float]) -> float | None:
        old = self.sums.get(name, (0.0, 0.0))
        noise, signal = (_DECAY * a + b for a, b in zip(old, found, strict=True))
        self.sums[name] = [noise, signal]
        return noise / signal if noise > 0 and signal > 0 else None
