"""Gradient transforms: what is done to the mean gradient before the optimizer gets it.

A transform maps a list of (gradient, variable) to such a list. These two are Keras objects, so
that an optimizer with one of them can be saved with a model.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum.accumulation.contracts import MeanGradients


@tf_keras.saving.register_keras_serializable(package="bertaccum")
class ClipByGlobalNorm:
    """A transform that scales all gradients alike so that their joint norm is bounded.

    It implements `ScalesByFactor`.

    Args:
      clip_norm: the largest joint norm.

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
        """Return what gradients of this joint norm are multiplied by."""
        return tf.minimum(self.clip_norm / norm, 1.0)

    def get_config(self) -> dict[str, Any]:
        return {"clip_norm": self.clip_norm}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ClipByGlobalNorm:
        return cls(**config)


@tf_keras.saving.register_keras_serializable(package="bertaccum")
class AdaptiveClip:
    """A transform that bounds each unit's gradient norm by a share of the norm of its weights.

    A unit is what feeds one output: a column of a kernel, a filter, an entry of a bias.
    Source: Brock, De, Smith and Simonyan 2021, "High-Performance Large-Scale Image
    Recognition Without Normalization", equation 3.

    Args:
      clipping: the largest ratio of gradient to weight norm.
      epsilon: the least weight norm, so that zero weights can move.
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
    """Return norms over all axes but the last; of a bias or scale, of each entry."""
    axes = list(range(tensor.shape.rank - 1))
    if not axes:
        return tf.abs(tensor)
    return tf.sqrt(tf.reduce_sum(tf.square(tensor), axes, keepdims=True))
