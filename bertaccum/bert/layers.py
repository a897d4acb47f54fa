"""Layers and activations with closed-form gradients, which take less time or memory.

Their values are those of Keras and TensorFlow. Dense layers are products of matrices, which are
faster than einsum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum.bert.low_rank import LowRank

# 0.5 (1 + tanh(u)) equals sigmoid(2 u), where u = sqrt(2 / pi) (x + 0.044715 x**3).
_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _LINEAR
# The normal distribution: the scale of x in erf, and the peak of the density.
_ROOT_HALF, _PEAK = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)

Activation = Callable[[tf.Tensor], tf.Tensor]
Initializer = Callable[[], tf_keras.initializers.Initializer]
# A value and its gradient function; `tf.custom_gradient` returns only the value to callers.
_WithGradient = tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]
_Gradients = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


@tf.autograph.experimental.do_not_convert
@tf.custom_gradient
def gelu(given: tf.Tensor) -> _WithGradient:
    """Apply the tanh approximation of the Gaussian error linear unit.

    BERT was pretrained with it. The values equal those of `tf.nn.gelu(x, approximate=True)`, whose
    gradient keeps every intermediate result in memory; this one keeps only the derivative. Half
    precision is computed in float32.

    Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units".
    """
    x = _precise(given)
    inner = x * (_LINEAR + _CUBIC * tf.square(x))
    gate = tf.sigmoid(inner)
    # x times the derivative of `inner` equals 3 inner - 2 linear x. Each line below makes one pass
    # over memory.
    times_x = tf.add_n([inner, inner, inner, x * (-2 * _LINEAR)])
    derivative = gate + tf.raw_ops.SigmoidGrad(y=gate, dy=times_x)
    derivative = tf.cast(derivative, given.dtype)
    return tf.cast(x * gate, given.dtype), lambda upstream: upstream * derivative


@tf.autograph.experimental.do_not_convert
@tf.custom_gradient
def gelu_erf(given: tf.Tensor) -> _WithGradient:
    """Apply the exact GELU, x times the normal CDF at x, which Hugging Face calls `gelu`."""
    x = _precise(given)
    twice = 1.0 + tf.math.erf(x * _ROOT_HALF)
    derivative = tf.cast(0.5 * twice + x * _PEAK * tf.exp(-0.5 * tf.square(x)), given.dtype)
    # TensorFlow Lite has no erf. Its converter recognizes these products as a GELU.
    return tf.cast(0.5 * x * twice, given.dtype), lambda upstream: upstream * derivative


def for_inference(activation: Activation) -> Activation:
    """Return a function with the same values, to apply directly to the result of a dense layer.

    On CPUs, TensorFlow recognizes its own GELU after a product in float32, and computes both in one
    kernel (`_FusedMatMul`). A gradient of the result would take more memory.
    """
    approximate = {gelu: True, gelu_erf: False}.get(activation)

    def fused(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.gelu(x, approximate) if x.dtype == tf.float32 else activation(x)

    return activation if approximate is None else fused


def _precise(x: tf.Tensor) -> tf.Tensor:
    """Return `x` in float32, or in float64 if it has this dtype."""
    return tf.cast(x, tf.float64 if x.dtype == tf.float64 else tf.float32)


@tf.autograph.experimental.do_not_convert
@tf.custom_gradient
def dense(
    rows: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], _Gradients]]:
    """Return `rows` [rows, inputs] times `kernel` [inputs, outputs], plus `bias` [outputs].

    The kernel may have another dtype than the rest. `tf.custom_gradient` hides the gradient
    function from callers.
    """

    def gradient(upstream: tf.Tensor) -> _Gradients:
        return (
            # In float32 on CPUs, einsum is a third faster than matmul with a transposed kernel.
            tf.einsum("ab,cb->ac", upstream, _cast_for(upstream, kernel)),
            tf.cast(tf.matmul(rows, upstream, transpose_a=True), kernel.dtype),
            tf.raw_ops.BiasAddGrad(out_backprop=upstream),
        )

    return dense_for_inference(rows, kernel, bias), gradient


def dense_for_inference(rows: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Compute what `dense` does, in operations that TensorFlow can fuse with an activation."""
    return tf.nn.bias_add(tf.matmul(rows, _cast_for(rows, kernel)), bias)


def _cast_for(rows: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Return a kernel in the dtype of `rows`, when they are known."""
    if kernel.dtype == rows.dtype:
        return kernel
    # Without the dependency, TensorFlow would cast the kernels of all layers at once, and would
    # keep the results until backpropagation.
    with tf.control_dependencies([rows]):
        return tf.cast(kernel, rows.dtype)


def rows_of(tensor: tf.Tensor) -> tf.Tensor:
    """Return a tensor [..., width] as a matrix [rows, width]."""
    return tensor if tensor.shape.rank == 2 else tf.reshape(tensor, [-1, tensor.shape[-1]])


def sizes_of(tensor: tf.Tensor) -> list[Any]:
    """Return the size of each axis: a number if it is known, otherwise an int32 scalar."""
    known = list(tensor.shape)
    if None not in known:
        return known
    sizes = tf.unstack(tf.shape(tensor), len(known))
    return [size if size is not None else sizes[i] for i, size in enumerate(known)]


class _PartlyTrained(tf_keras.layers.Layer):
    """A layer that can freeze some of its weights.

    Attributes:
      frozen: Names of the attributes that contain these weights.
    """

    frozen: frozenset[str] = frozenset()

    @property
    def trainable_weights(self) -> list[tf.Variable]:
        kept = {id(getattr(self, name)) for name in self.frozen}
        return [weight for weight in super().trainable_weights if id(weight) not in kept]

    @property
    def non_trainable_weights(self) -> list[tf.Variable]:
        kept = [getattr(self, name) for name in sorted(self.frozen)] if self.trainable else []
        return [*kept, *super().non_trainable_weights]


class Projection(_PartlyTrained):
    """A dense layer on rows, whose weights have those of its axes that a checkpoint has.

    It has the same weights as an `EinsumDense` layer: a kernel [*input axes, *output axes] and a
    bias [*output axes].

    Args:
      input_shape: Sizes of the input axes; None for a single axis with the width of the rows.
      kernel_dtype: Dtype in which the kernel is stored if it is never trained; None for that of the
        bias.

    Attributes:
      adapter: Low-rank adapter whose outputs are added, or None.
    """

    def __init__(
        self,
        output_shape: tuple[int, ...],
        input_shape: tuple[int, ...] | None = None,
        kernel_initializer: Any = "glorot_uniform",
        kernel_dtype: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._outer, self._inner, self._kernel_dtype = output_shape, input_shape, kernel_dtype
        self.adapter: LowRank | None = None
        self._kernel_initializer = tf_keras.initializers.get(kernel_initializer)

    def build(self, rows_shape: tf.TensorShape) -> None:
        """Create the kernel and the bias for rows of this shape."""
        inner = self._inner or rows_shape[-1:]
        self.kernel = self.add_weight(
            "kernel",
            [*inner, *self._outer],
            self._kernel_dtype,
            self._kernel_initializer,
            experimental_autocast=False,
        )
        self.bias = self.add_weight("bias", self._outer, initializer="zeros")
        super().build(rows_shape)

    def call(
        self,
        rows: tf.Tensor,
        training: bool | None = None,
        activation: Callable[[tf.Tensor], tf.Tensor] = lambda outputs: outputs,
    ) -> tf.Tensor:
        """Return `activation` of the outputs [rows, outputs] of `rows` [rows, inputs].

        Args:
          training: Whether a gradient of the result will be computed.
        """
        inputs, outputs = rows.shape[-1], math.prod(self._outer)
        # Keras casts the bias to the compute dtype when it is read, and `dense` casts the kernel.
        kernel, bias = _shaped(self.kernel, [inputs, outputs]), _shaped(self.bias, [outputs])
        results = (dense if training else dense_for_inference)(rows, kernel, bias)
        if self.adapter is not None:
            results = tf.add_n([results, self.adapter(rows, training=training)])
        return activation(results)


def _shaped(variable: tf.Variable, shape: list[int]) -> tf.Tensor:
    """Return a variable's value in a shape, without an operation if that is its own shape."""
    value = tf.convert_to_tensor(variable)
    return value if value.shape == shape else tf.reshape(value, shape)


@tf.autograph.experimental.do_not_convert
def layer_norm(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Normalize the last axis of `x` to zero mean and unit variance, then scale and shift it.

    The gradient keeps fewer tensors in memory than TensorFlow's own, which keeps every intermediate
    result. `scale` and `offset` are [width], and all floats have the same dtype.

    Source: Ba, Kiros and Hinton 2016, "Layer Normalization".
    """

    @tf.custom_gradient
    def run(
        x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], _Gradients]]:
        centred = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), -1, keepdims=True)
        inverse = tf.math.rsqrt(variance + epsilon)  # [..., 1]
        normalized = centred * inverse

        def gradient(upstream: tf.Tensor) -> _Gradients:
            inner = upstream * scale
            along = tf.reduce_mean(inner * normalized, -1, keepdims=True)
            mean = tf.reduce_mean(inner, -1, keepdims=True)
            return (
                inverse * (inner - mean - normalized * along),
                _sum_of_rows(upstream * normalized),
                _sum_of_rows(upstream),
            )

        return normalized * scale + offset, gradient

    return run(x, scale, offset)


def _sum_of_rows(x: tf.Tensor) -> tf.Tensor:
    """Return the sum [width] of rows [..., width], twice as fast as `reduce_sum` on CPUs."""
    return tf.raw_ops.BiasAddGrad(out_backprop=rows_of(x))


class LayerNorm(_PartlyTrained, tf_keras.layers.LayerNormalization):
    """Keras' layer normalization over the last axis, computed by `layer_norm`.

    It has the same weights as Keras' layer, and its arguments except `axis`, `center` and `scale`.
    """

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Normalize `inputs` [..., width] in float32 or float64, whatever their dtype."""
        x = _precise(inputs)
        scale, offset = (tf.cast(v, x.dtype) for v in (self.gamma, self.beta))
        return tf.cast(layer_norm(x, scale, offset, self.epsilon), self.compute_dtype)
