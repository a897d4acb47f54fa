"""Transforms of the mean gradient before the inner optimizer receives it, saved with a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf
import tf_keras

MeanGradients: TypeAlias = list[tuple[tf.Tensor, tf.Variable]]
GradientTransform: TypeAlias = Callable[[MeanGradients], MeanGradients]


@tf_keras.saving.register_keras_serializable(package="bertaccum")
class ClipByGlobalNorm:
    """A transform that bounds the global norm of the gradients by multiplying all by one factor.

    Args:
      clip_norm: Maximum global norm.

    Source: Pascanu, Mikolov and Bengio 2012, "On the difficulty of training recurrent
    neural networks".
    """

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = clip_norm

    def __call__(self, grads_and_vars: MeanGradients) -> MeanGradients:
        gradients, variables = zip(*grads_and_vars, strict=True)
        clipped, _ = tf.clip_by_global_norm(gradients, self.clip_norm)
        return list(zip(clipped, variables, strict=True))

    def factor(self, norm: tf.Tensor) -> tf.Tensor:
        """Return the factor for mean gradients of this global norm, a scalar of at most 1."""
        return tf.minimum(self.clip_norm / norm, 1.0)

    def get_config(self) -> dict[str, Any]:
        return {"clip_norm": self.clip_norm}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ClipByGlobalNorm:
        return cls(**config)


@tf_keras.saving.register_keras_serializable(package="bertaccum")
class AdaptiveClip:
    """A transform that bounds the norm of each unit's gradient relative to that of its weights.

    A unit consists of the weights of one output: a column of a kernel, a filter, or an entry of a
    bias.

    Args:
      clipping: Maximum ratio of gradient norm to weight norm.
      epsilon: Lower bound of the weight norm, so that weights of zero can change.

    Source: Brock, De, Smith and Simonyan 2021, "High-Performance Large-Scale Image
    Recognition Without Normalization", equation 3.
    """

    def __init__(self, clipping: float = 0.01, epsilon: float = 1e-3) -> None:
        self.clipping, self.epsilon = clipping, epsilon

    def __call__(self, grads_and_vars: MeanGradients) -> MeanGradients:
        return [(self._clip(gradient, variable), variable) for gradient, variable in grads_and_vars]

    def _clip(self, gradient: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
        weights = tf.cast(variable, gradient.dtype)
        bound = self.clipping * tf.maximum(_unit_norm(weights), self.epsilon)
        norm = tf.maximum(_unit_norm(gradient), tf.constant(1e-6, gradient.dtype))
        return tf.where(norm > bound, gradient * (bound / norm), gradient)

    def get_config(self) -> dict[str, Any]:
        return {"clipping": self.clipping, "epsilon": self.epsilon}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> AdaptiveClip:
        return cls(**config)


def _unit_norm(tensor: tf.Tensor) -> tf.Tensor:
    """Return the norms over all axes but the last, or the absolute values of a vector."""
    axes = list(range(tensor.shape.rank - 1))
    if not axes:
        return tf.abs(tensor)
    return tf.sqrt(tf.reduce_sum(tf.square(tensor), axes, keepdims=True))
