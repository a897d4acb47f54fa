"""Dropout whose masks follow from a seed that is given with each forward pass.

So a forward pass can be repeated exactly: by a run that is resumed, and by recomputation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import tensorflow as tf
import tf_keras

_SEED: ContextVar[tf.Tensor | None] = ContextVar("dropout_seed", default=None)


@contextmanager
def dropout_seed(seed: tf.Tensor) -> Iterator[None]:
    """Inside, forward passes of models that `seed_dropout` was given drop by this seed.

    Args:
      seed: [2] integers.
    """
    token = _SEED.set(seed)
    try:
        yield
    finally:
        _SEED.reset(token)


def present_seed() -> tf.Tensor | None:
    """What the innermost `dropout_seed` was given."""
    return _SEED.get()


def seed_dropout(model: tf_keras.Model) -> None:
    """Makes every dropout layer of a model ask for the seed; each makes masks of its own of it."""
    layers = [part for part in model.submodules if isinstance(part, tf_keras.layers.Dropout)]
    for site, layer in enumerate(layers):
        layer._random_generator = _SeededMasks(site)


class _SeededMasks:
    """Stands in for the generator of a Keras dropout layer."""

    def __init__(self, site: int) -> None:
        self._site = site

    def dropout(
        self, inputs: tf.Tensor, rate: float, noise_shape: tf.Tensor | None = None
    ) -> tf.Tensor:
        seed = _SEED.get()
        if seed is None:
            raise RuntimeError("a forward pass in training needs a dropout_seed")
        own = tf.random.experimental.stateless_fold_in(seed, self._site)
        return tf.nn.experimental.stateless_dropout(inputs, rate, own, noise_shape=noise_shape)
