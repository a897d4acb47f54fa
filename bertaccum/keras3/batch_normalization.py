"""Batch normalization for Keras 3 with exact moving statistics under gradient accumulation."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import keras
from keras import ops

from bertaccum.accumulation.contract import whole_steps
from bertaccum.keras3 import micro_batch
from bertaccum.keras3 import replicas as tensorflow_replicas

# Whether `BatchNormalization.call` computes the statistics of a micro-batch. Each replica is a
# thread, and has its own value.
_COMPUTING: ContextVar[bool] = ContextVar("computing", default=False)


@keras.saving.register_keras_serializable(package="bertaccum")
class AccumBatchNormalization(keras.layers.BatchNormalization):
    """A `BatchNormalization` that updates its moving statistics once per window.

    For the same inputs to the layer, `moving_mean` and `moving_variance` equal, up to rounding,
    those of `BatchNormalization` on the whole window as one large batch. The variance of a window
    is the variance within its micro-batches plus the variance between their means (the law of total
    variance); each micro-batch is weighted by its number of values.

    Training itself still differs from training on the large batch, because each micro-batch is
    normalized with its own mean and variance. For exact training, freeze the layer
    (`trainable = False`), or use group or layer normalization, which normalize each example
    separately.

    A window ends with the `accumulation_steps`-th training call, or with `end_window`, which an
    `AccumulatingModel` calls at the end of an epoch. Four further non-trainable weights contain the
    partial window. With several TensorFlow replicas, pass `synchronized=True`, so that each
    micro-batch consists of the examples of all replicas.

    Sources: Ioffe and Szegedy 2015, "Batch Normalization"; Chan, Golub and LeVeque 1979,
    "Updating formulae and a pairwise algorithm for computing sample variances".

    Args:
      accumulation_steps: Number of training calls in a window.
      **kwargs: Arguments of `BatchNormalization`, such as `axis`, `momentum` and `epsilon`.

    Raises:
      TypeError: If `accumulation_steps` is not an integer.
      ValueError: If `accumulation_steps` is less than 1, or `renorm` is set.
    """

    def __init__(self, accumulation_steps: int, **kwargs: Any) -> None:
        if kwargs.get("renorm"):
            raise ValueError("AccumBatchNormalization does not support renorm; remove it")
        super().__init__(**kwargs)
        self.accumulation_steps = whole_steps(accumulation_steps, "an integer")

    @property
    def momentum(self) -> float:
        """Momentum of the moving statistics."""
        # Without momentum, `BatchNormalization` replaces the moving statistics by those of a
        # micro-batch, which `call` reads.
        return 0.0 if _COMPUTING.get() else self.window_momentum

    @momentum.setter
    def momentum(self, momentum: float) -> None:
        self.window_momentum = float(momentum)

    def build(self, input_shape: Any) -> None:
        """Create the weights of `BatchNormalization` and the window."""
        super().build(input_shape)
        channels = (input_shape[self.axis],)

        def add(name: str, shape: Any = ()) -> keras.Variable:
            return self.add_weight(
                shape=shape, initializer="zeros", trainable=False, autocast=False, name=name
            )

        self.window_calls, self.window_count = add("window_calls"), add("window_count")
        self.window_mean = add("window_mean", channels)
        self.window_variance = add("window_variance", channels)

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Normalize as `BatchNormalization` does; in training, also add the batch to the window."""
        if not (training and self.trainable):
            return super().call(inputs, training=training, mask=mask)
        micro = micro_batch.current()
        if micro is not None and self.accumulation_steps != 1:
            if id(self) in micro.normalized:  # Layers of nested models may have the same name.
                raise ValueError(
                    f"layer {self.name} is called twice in a micro-step, but each of its windows"
                    " consists of one call per micro-step; create a layer for each call"
                )
            micro.normalized.append(id(self))
        statistics = self.moving_mean, self.moving_variance
        before = [ops.copy(ops.convert_to_tensor(variable)) for variable in statistics]
        token = _COMPUTING.set(True)
        try:
            outputs = super().call(inputs, training=training, mask=mask)
        finally:
            _COMPUTING.reset(token)
        mean, variance = (ops.convert_to_tensor(variable) for variable in statistics)
        with tensorflow_replicas.after([inputs]):
            self._add(self._count(inputs, mask), mean, variance)
        self._end(self.window_calls >= self.accumulation_steps, before)
        return outputs

    def end_window(self) -> None:
        """Update the moving statistics from a partial window, if there is one."""
        if self.built:
            moving = self.moving_mean, self.moving_variance
            self._end(self.window_calls > 0, [ops.convert_to_tensor(v) for v in moving])

    def drop_window(self) -> None:
        """Discard a partial window."""
        for variable in self._window if self.built else []:
            variable.assign(ops.zeros(variable.shape))

    @property
    def _window(self) -> list[keras.Variable]:
        return [self.window_calls, self.window_count, self.window_mean, self.window_variance]

    def _count(self, inputs: Any, mask: Any) -> Any:
        """Return the number of values of each channel, a scalar."""
        if mask is None:
            count = ops.cast(ops.size(inputs), "float32") / inputs.shape[self.axis]
        else:
            mask = ops.broadcast_to(mask, ops.shape(inputs)[:-1])
            count = ops.sum(ops.cast(mask, "float32"))
        return tensorflow_replicas.sums([count])[0] if self.synchronized else count

    def _add(self, count: Any, mean: Any, variance: Any) -> None:
        """Add the moments of a micro-batch, weighted by its share of all values."""
        total = self.window_count + count
        share = ops.cast(count / ops.maximum(total, 1.0), mean.dtype)
        shift = mean - self.window_mean
        growth = variance - self.window_variance + (1 - share) * shift**2
        self.window_variance.assign(self.window_variance + share * growth)
        self.window_mean.assign(self.window_mean + share * shift)
        self.window_count.assign(total)
        self.window_calls.assign(self.window_calls + 1)

    def _end(self, due: Any, before: Sequence[Any]) -> None:
        """Move the statistics and start a new window if `due`; otherwise, set them to `before`."""
        pooled = self.window_mean, self.window_variance
        moving = self.moving_mean, self.moving_variance
        for variable, old, new in zip(moving, before, pooled, strict=True):
            moved = old * self.momentum + new * (1.0 - self.momentum)
            variable.assign(ops.where(due, moved, old))
        for variable in self._window:
            value = ops.convert_to_tensor(variable)
            variable.assign(ops.where(due, ops.zeros_like(value), value))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments as serializable values."""
        return super().get_config() | {"accumulation_steps": self.accumulation_steps}

    def load_own_variables(self, store: Any) -> None:
        """Load the weights and the window; files of `BatchNormalization` have no window."""
        own = self.variables[: -len(self._window)] if self.built else []
        if len(store.keys()) != len(own):
            super().load_own_variables(store)
            return
        for number, variable in enumerate(own):
            variable.assign(store[str(number)])
        self.drop_window()
