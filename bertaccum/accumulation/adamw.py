"""AdamW optimizers that update one variable at a time, to save memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat

_HOST = "/CPU:0"


class InPlaceAdamW(tf_keras.optimizers.AdamW):
    """An AdamW optimizer that uses TensorFlow's fused kernel.

    The AdamW of tf_keras creates three temporary tensors of a variable's size, and may do so for
    many variables at the same time. This optimizer creates one, for one variable at a time on each
    device, and takes half the time. In float32 the second moments differ from those of tf_keras by
    1e-5 of their value, because the kernel rounds 1 - beta_2.

    The class implements `TakesScaledSum` from `contracts.py`: an `AccumulatingOptimizer` passes the
    sums of gradients to it without computing their means.

    Args:
      *args: Positional arguments of `tf_keras.optimizers.AdamW`.
      bias_correction: Whether to correct the bias of the moments. Without the correction, this
        is the `AdamWeightDecayOptimizer` of google-research/bert.
      **kwargs: Keyword arguments of `tf_keras.optimizers.AdamW`; `jit_compile` is ignored.

    Sources: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization"; Kingma and
    Ba 2015, "Adam"; Devlin et al. 2019, "BERT".
    """

    _factor: Any = None

    def __init__(self, *args: Any, bias_correction: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **(kwargs | {"jit_compile": False}))
        self.bias_correction = bias_correction
        # The last operation on each device, for which the update of the next variable waits.
        self._last: dict[str, tf.Operation] = {}

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"bias_correction": self.bias_correction}

    @contextmanager
    def scaling(self, factor: tf.Tensor) -> Iterator[None]:
        """Return a context in which `apply_gradients` multiplies each gradient by `factor`."""
        self._factor = factor
        try:
            yield
        finally:
            self._factor = None

    def _apply_weight_decay(self, variables: Any) -> None:
        """Start an update instead of applying weight decay, which `update_step` does.

        Keras calls this method before the first `update_step` of an update.
        """
        self._last = {}

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Decay and update one variable.

        Args:
          gradient: A dense tensor or variable of any float dtype, with the variable's shape.
          variable: The variable to update.
        """
        device = variable.device
        before = [self._last[device]] if device in self._last else []
        learning_rate = tf.cast(self.learning_rate, variable.dtype)
        if _tf_compat.use_weight_decay(self, variable):
            with tf.control_dependencies(before):
                before = [self._decay(variable, learning_rate)]
        # Reading a sum that received IndexedSlices copies it, so each sum waits for its turn.
        with tf.control_dependencies(before), self._where_steps_are_made():
            gradient = tf.cast(tf.convert_to_tensor(gradient), variable.dtype)
            if self._factor is not None:
                gradient = gradient * tf.cast(self._factor, variable.dtype)
            self._last[device] = self._apply_adam(gradient, variable, learning_rate)

    def _where_steps_are_made(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def _decay(self, variable: tf.Variable, learning_rate: tf.Tensor) -> tf.Operation:
        rate = learning_rate * tf.cast(self.weight_decay, variable.dtype)
        return variable.assign_sub(variable.read_value() * rate, read_value=False)

    def _apply_adam(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor
    ) -> tf.Operation:
        first, second = _tf_compat.adam_moments(self, variable)
        dtype = variable.dtype
        beta1_power, beta2_power = self._powers(dtype)
        return tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=first.handle,
            v=second.handle,
            beta1_power=beta1_power,
            beta2_power=beta2_power,
            lr=learning_rate,
            beta1=tf.constant(self.beta_1, dtype),
            beta2=tf.constant(self.beta_2, dtype),
            epsilon=tf.constant(self.epsilon, dtype),
            grad=gradient,
        )

    def _powers(self, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
        """Return both betas, each to the power of the update number, for the bias correction."""
        if not self.bias_correction:
            return tf.zeros([], dtype), tf.zeros([], dtype)
        # tf_keras uses `cast`, which rounds to float32 first; `constant` does not.
        step = tf.cast(self.iterations + 1, dtype)
        return tf.pow(tf.cast(self.beta_1, dtype), step), tf.pow(tf.cast(self.beta_2, dtype), step)


class OffloadedAdamW(InPlaceAdamW):
    """An `InPlaceAdamW` that keeps the moments in host memory and computes each step there.

    Each update copies every gradient to the host and every step back to the device, one
    variable at a time. The device therefore needs temporary memory for only one variable.

    Source: Ren et al. 2021, "ZeRO-Offload: Democratizing Billion-Scale Model Training".
    """

    def add_variable_from_reference(self, *args: Any, **kwargs: Any) -> tf.Variable:
        with tf.device(_HOST):
            return _tf_compat.add_variable_on_present_device(self, *args, **kwargs)

    def _where_steps_are_made(self) -> AbstractContextManager[Any]:
        return tf.device(_HOST)

    def _apply_adam(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor
    ) -> tf.Operation:
        first, second = _tf_compat.adam_moments(self, variable)
        beta1_power, beta2_power = self._powers(variable.dtype)
        rate = learning_rate * tf.sqrt(1 - beta2_power) / (1 - beta1_power)
        mean = first.assign_add((gradient - first) * (1 - self.beta_1))
        square = second.assign_add((gradient * gradient - second) * (1 - self.beta_2))
        step = rate * mean / (tf.sqrt(square) + self.epsilon)
        with tf.device(variable.device):
            return variable.assign_sub(step, read_value=False)
