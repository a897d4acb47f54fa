"""An AdamW optimizer that updates one variable at a time, to save memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation.compiled import maybe_compiled
from bertaccum.accumulation.offload.host_adam import update_from_host
from bertaccum.accumulation.offload.host_memory import HostTensor
from bertaccum.accumulation.replicas import replicas_in_sync


class InPlaceAdamW(tf_keras.optimizers.AdamW):
    """An AdamW optimizer that uses TensorFlow's fused kernel.

    The AdamW of tf_keras creates three temporary tensors of a variable's size, and may do so for
    many variables at the same time. This optimizer creates one, for one variable at a time on each
    device, and takes half the time. In float32 the second moments differ from those of tf_keras by
    1e-5 of their value, because the kernel rounds 1 - beta_2.

    Within `scaling`, it takes the sums of gradients, so that nobody computes their means.

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
        # Whether XLA compiles `apply_gradients`, if the moments are on the device.
        self.compiled = False
        self._host = False  # Whether the moments are in host memory.
        self._host_folder: str | None = None
        # The last operation on each device, for which the update of the next variable waits.
        self._last: dict[str, tf.Operation] = {}
        # The numbers of this update, computed once for each device and dtype.
        self._numbers: dict[tuple[str, tf.DType], _Numbers] = {}

    def offload_moments(self, folder: str | None = None) -> None:
        """Keep the moments in host memory from now on, where each step is then computed.

        Args:
          folder: Folder for files that contain the moments, or None to use memory.

        Raises:
          RunError: The folder cannot be used, or its disk is full.
        """
        if self._host:
            return
        _tf_compat.replace_adam_moments(self, lambda m: HostTensor.moved(m, folder))
        self._host, self._host_folder = True, folder

    def add_variable_from_reference(
        self, model_variable: tf.Variable, variable_name: str, *args: Any, **kwargs: Any
    ) -> tf.Variable | HostTensor:
        if self._host:
            name = f"{variable_name}/{model_variable.name}"
            moment = HostTensor(model_variable, name, self._host_folder)
            _tf_compat.add_optimizer_variable(self, moment)
            return moment
        return super().add_variable_from_reference(model_variable, variable_name, *args, **kwargs)

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

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
        """Update the variables, as the method of tf_keras does."""
        pairs, apply = list(grads_and_vars), super().apply_gradients
        # Replicas update their variables together, outside of compiled code.
        compile = self.compiled and not self._host and replicas_in_sync() == 1
        return maybe_compiled(lambda: tf.identity(apply(pairs, *args, **kwargs)), compile)

    def _apply_weight_decay(self, variables: Any) -> None:
        """Start an update instead of applying weight decay, which `update_step` does.

        Keras calls this method before the first `update_step` of an update.
        """
        self._last, self._numbers = {}, {}

    def update_step(self, gradient: Any, variable: tf.Variable) -> None:
        """Decay and update one variable.

        The gradient is a dense tensor or variable of any float dtype, or a `HostArray`.
        """
        device, dtype = variable.device, variable.dtype
        first, second = _tf_compat.adam_moments(self, variable)
        if (device, dtype) not in self._numbers:
            self._numbers[device, dtype] = self._numbers_of_update(dtype)
        numbers = self._numbers[device, dtype]
        decay = numbers.decay if _tf_compat.use_weight_decay(self, variable) else None
        with tf.control_dependencies([self._last[device]] if device in self._last else []):
            if isinstance(first, HostTensor):
                moments = first.on(device), second.on(device)
                beta1_power, beta2_power = numbers.powers
                rate = numbers.rate * tf.sqrt(1 - beta2_power) / (1 - beta1_power)
                betas = self.beta_1, self.beta_2
                last = update_from_host(
                    variable, gradient, moments, numbers.factor, rate, decay, betas, self.epsilon
                )
            else:
                last = self._update_on_device(variable, gradient, (first, second), numbers, decay)
        self._last[device] = last

    def _update_on_device(
        self,
        variable: tf.Variable,
        gradient: Any,
        moments: tuple[tf.Variable, tf.Variable],
        numbers: _Numbers,
        decay: tf.Tensor | None,
    ) -> tf.Operation:
        decayed = []
        if decay is not None:
            decayed = [variable.assign_sub(variable.value() * decay, read_value=False)]
        first, second = moments
        beta1_power, beta2_power = numbers.powers
        # Reading a sum that received IndexedSlices copies it, so each sum waits for its turn.
        with tf.control_dependencies(decayed):
            gradient = tf.cast(tf.convert_to_tensor(gradient), variable.dtype)
            return tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=first.handle,
                v=second.handle,
                beta1_power=beta1_power,
                beta2_power=beta2_power,
                lr=numbers.rate,
                beta1=tf.constant(self.beta_1, variable.dtype),
                beta2=tf.constant(self.beta_2, variable.dtype),
                epsilon=tf.constant(self.epsilon, variable.dtype),
                grad=gradient if numbers.factor is None else gradient * numbers.factor,
            )

    def _numbers_of_update(self, dtype: tf.DType) -> _Numbers:
        rate = tf.cast(self.learning_rate, dtype)
        decay = None if self.weight_decay is None else rate * tf.cast(self.weight_decay, dtype)
        factor = None if self._factor is None else tf.cast(self._factor, dtype)
        if not self.bias_correction:
            return _Numbers(rate, decay, factor, (tf.zeros([], dtype), tf.zeros([], dtype)))
        # tf_keras uses `cast`, which rounds to float32 first; `constant` does not.
        step = tf.cast(self.iterations + 1, dtype)
        betas = tf.cast(self.beta_1, dtype), tf.cast(self.beta_2, dtype)
        return _Numbers(rate, decay, factor, (tf.pow(betas[0], step), tf.pow(betas[1], step)))


@dataclass(frozen=True)
class _Numbers:
    """Scalars that all variables of a dtype on a device share in an update, in that dtype.

    Attributes:
      rate: Learning rate.
      decay: Learning rate times weight decay; None without weight decay.
      factor: Factor of the gradients; None if they are not scaled.
      powers: Both betas to the power of the update number, or 0 without bias correction.
    """

    rate: tf.Tensor
    decay: tf.Tensor | None
    factor: tf.Tensor | None
    powers: tuple[tf.Tensor, tf.Tensor]
