"""Batch normalization with exact moving statistics under gradient accumulation."""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation import micro_batch, serialization
from bertaccum.accumulation.checks import checked_steps
from bertaccum.accumulation.replicas import replicated, strategy_outside_replicas

_UNSUPPORTED = ("renorm", "virtual_batch_size", "adjustment")


@tf_keras.saving.register_keras_serializable(package="bertaccum")
class AccumBatchNormalization(tf_keras.layers.BatchNormalization):
    """A `BatchNormalization` that updates its moving statistics once per window.

    For the same inputs to the layer, `moving_mean` and `moving_variance` equal, up to rounding,
    those of `BatchNormalization` on the whole window as one large batch. The variance of a window
    is the variance within its micro-batches plus the variance between their means; each micro-batch
    is weighted by its number of values. As in `BatchNormalization`, the fused kernel's variance is
    multiplied by n / (n - 1), where n is the number of values in the window.

    Training itself still differs from training on the large batch, because each micro-batch is
    normalized with its own mean and variance. For exact training, freeze the layer
    (`trainable = False`), or use group or layer normalization, which normalize each example
    separately.

    A window ends with the `accumulation_steps`-th training call or with `end_window()`. In a model
    changed by `accumulate_gradients`, each call of a layer in a micro-step has its own window, as
    in a siamese network. In other models every call counts as a micro-step.

    Under a distribution strategy each replica has its own window. With `synchronized`, each
    micro-batch consists of the examples of all replicas. Otherwise, as with `BatchNormalization`,
    the mean of the replicas' statistics is used and saved.

    The weights are those of `BatchNormalization`. A partial window is not a weight, but
    `tf.train.Checkpoint` and the .keras format save it, averaged over replicas.

    Sources: Ioffe and Szegedy 2015, "Batch Normalization"; Chan, Golub and LeVeque 1979,
    "Updating formulae and a pairwise algorithm for computing sample variances".

    Args:
      accumulation_steps: Number of training calls in a window: an integer, or a variable that
        may change. A change takes effect at the next window.
      *args: Positional arguments of `BatchNormalization`.
      **kwargs: Keyword arguments of `BatchNormalization`, such as `axis`, `momentum`, `epsilon`,
        `synchronized` and `fused` (False turns the fused kernel off).

    Raises:
      TypeError: If `accumulation_steps` is neither an integer nor a variable.
      ValueError: If `accumulation_steps` is less than 1, or if `renorm`, `virtual_batch_size` or
        `adjustment` is set.
    """

    # These are class attributes because Keras tracks new instance attributes: it would add
    # variables to the layer's weights and other objects to its dependencies.
    accumulation_steps: int | tf.Variable = 1
    _micro_batch: tuple[tf.Tensor, tf.Tensor, tf.Tensor] | None = None
    _last_graph: weakref.ref[Any] | None = None

    def __init__(self, accumulation_steps: int | tf.Variable, *args: Any, **kwargs: Any) -> None:
        steps = checked_steps(accumulation_steps)
        for option in _UNSUPPORTED:
            if kwargs.get(option):
                raise ValueError(f"AccumBatchNormalization does not support {option}; remove it")
        super().__init__(*args, **kwargs)
        self.accumulation_steps = steps

    def build(self, input_shape: Any) -> None:
        """Create the weights of `BatchNormalization` and the window."""
        super().build(input_shape)
        self._window = self._new_window()
        # The windows of the second and later calls in a micro-step.
        self._further_windows: list[_PooledMoments] = []

    def _new_window(self) -> _PooledMoments:
        with tf.init_scope():
            return _PooledMoments(*_tf_compat.statistics_spec(self))

    def _window_of(self, call: int) -> _PooledMoments:
        while len(self._further_windows) < call:
            self._further_windows.append(self._new_window())
        return self._windows[call]

    @property
    def _windows(self) -> list[_PooledMoments]:
        return [self._window, *self._further_windows]

    def call(self, inputs: Any, training: Any = None, mask: tf.Tensor | None = None) -> tf.Tensor:
        """Normalize as `BatchNormalization` does; in training, also add the batch to the window."""
        outputs = super().call(inputs, training=training, mask=mask)
        self._micro_batch = None  # A symbolic tensor must not outlive its graph.
        return outputs

    def end_window(self) -> None:
        """Update the moving statistics from a partial window, if there is one."""
        for window in self._windows if self.built else []:
            self._on_each_replica(functools.partial(self._commit, window))

    def drop_window(self) -> None:
        """Discard a partial window."""
        for window in self._windows if self.built else []:
            self._on_each_replica(window.reset)

    def _on_each_replica(self, function: Callable[[], Any]) -> None:
        strategy = strategy_outside_replicas(self.moving_mean)
        function() if strategy is None else strategy.run(function)

    # --- Overridden parts of BatchNormalization ------------------------------------------

    def _calculate_mean_and_var(
        self,
        inputs: tf.Tensor,
        reduction_axes: Sequence[int],
        keep_dims: bool,
        mask: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        mean, variance = super()._calculate_mean_and_var(inputs, reduction_axes, keep_dims, mask)
        count = _count_values(inputs, reduction_axes, keep_dims, mask)
        context = tf.distribute.get_replica_context()
        if self.synchronized and context is not None:
            count = context.all_reduce(tf.distribute.ReduceOp.SUM, count)
        # No other replica's thread runs between this method and `_assign_moving_average`.
        self._micro_batch = (count, mean, variance)
        return mean, variance

    def _assign_moving_average(self, variable: tf.Variable, *_: Any) -> tf.Variable:
        # In training, Keras calls this for the mean and for the variance; accumulate only once.
        if variable is self.moving_variance and self._micro_batch is not None:
            self._accumulate(*self._micro_batch)
        return variable

    def _fused_batch_norm(
        self, inputs: tf.Tensor, mask: tf.Tensor | None, training: Any
    ) -> tf.Tensor:
        def train() -> tf.Tensor:
            outputs, *moments = self._fused_training(inputs)
            self.add_update(lambda: self._accumulate(*moments))
            return outputs

        def infer() -> tf.Tensor:
            return super(AccumBatchNormalization, self)._fused_batch_norm(inputs, None, False)

        if mask is not None:
            warnings.warn("the fused kernel ignores masks; use fused=False", stacklevel=2)
        return _tf_compat.smart_cond(training, train, infer)

    def _fused_training(
        self, inputs: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the outputs, and the micro-batch's number of values, mean and biased variance."""
        shape, dtype = _tf_compat.statistics_spec(self)
        outputs, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            inputs,
            self.gamma if self.scale else tf.ones(shape, dtype),
            self.beta if self.center else tf.zeros(shape, dtype),
            epsilon=self.epsilon,
            data_format=_tf_compat.data_format(self),
        )
        axes = [i for i in range(inputs.shape.rank) if i not in self.axis]
        count = _count_values(inputs, axes)
        return outputs, count, mean, variance / _bessel_correction(count, dtype)

    # --- The window ---------------------------------------------------------------------

    def _accumulate(self, count: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Operation:
        self._warn_of_a_second_call()
        window = self._window_of(micro_batch.call_number(self))
        # A call that fails because the dataset is exhausted must not count.
        with tf.control_dependencies([count]):
            window.add(count, mean, variance)
            due = window.count_call(self.accumulation_steps)
        return tf.cond(due, functools.partial(self._commit, window), tf.no_op)

    def _warn_of_a_second_call(self) -> None:
        if micro_batch.current() is not None or tf.executing_eagerly():
            return
        graph = tf.compat.v1.get_default_graph()
        if self._last_graph is not None and self._last_graph() is graph:
            warnings.warn(
                f"a function calls {self.name} twice in training. Without `accumulate_gradients`,"
                " each call counts as a micro-step. If both calls belong to the same micro-step,"
                " the moving statistics differ from those of the large batch",
                stacklevel=2,
            )
        self._last_graph = weakref.ref(graph)

    def _commit(self, window: _PooledMoments) -> tf.Operation:
        """Update the moving statistics without communication, as it is forbidden in `tf.cond`."""
        count, mean, variance = (tf.identity(v) for v in window.moments)
        if self.fused:
            variance *= _bessel_correction(count, variance.dtype)
        move = super()._assign_moving_average
        # A channel without values in the window keeps its statistics.
        move(self.moving_mean, mean, self.momentum, count)
        move(self.moving_variance, variance, self.momentum, count)
        return window.reset()

    # --- Saving -------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """Return the arguments; a variable `accumulation_steps` is replaced by its value."""
        return {
            **super().get_config(),
            "accumulation_steps": serialization.plain_steps(self.accumulation_steps),
            "synchronized": self.synchronized,
            "fused": self.fused,
        }

    def save_own_variables(self, store: Any) -> None:
        """Save the weights and the partial window to a .keras file."""
        super().save_own_variables(store)
        for name, variable in self._window_variables().items():
            store[name] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Load the weights and the window that `save_own_variables` saved."""
        names = set(store.keys())
        # The first micro-step creates the further windows, but a newly loaded model has not run
        # one yet.
        if self.built:
            self._window_of(sum(name.endswith("_calls") for name in names) - 1)
        window = self._window_variables()
        keys = names - window.keys()
        super().load_own_variables({key: store[key] for key in keys})
        for name, variable in window.items():
            variable.assign(store[name][()])

    def _window_variables(self) -> dict[str, tf.Variable]:
        windows = enumerate(self._windows if self.built else [])
        return {
            f"window_{number}_{name}" if number else f"window_{name}": variable
            for number, window in windows
            for name, variable in window.variables.items()
        }


class _PooledMoments(_tf_compat.AutoTrackable):
    """The count, mean and variance of all values in a window, on each replica.

    Not a `tf.Module`, because Keras would add a module's variables to the layer's weights.
    """

    def __init__(self, shape: Sequence[int], dtype: tf.DType) -> None:
        first, mean = tf.VariableAggregation.ONLY_FIRST_REPLICA, tf.VariableAggregation.MEAN
        self.calls = replicated(tf.zeros([], tf.int64), first)
        self.length = replicated(tf.zeros([], tf.int64), first)
        # A window of large images may have more values than float32 can count.
        self.count = replicated(tf.zeros(shape, tf.float64), mean)
        self.mean = replicated(tf.zeros(shape, dtype), mean)
        self.variance = replicated(tf.zeros(shape, dtype), mean)

    @property
    def moments(self) -> tuple[tf.Variable, tf.Variable, tf.Variable]:
        return self.count, self.mean, self.variance

    @property
    def variables(self) -> dict[str, tf.Variable]:
        return {n: getattr(self, n) for n in ("calls", "length", "count", "mean", "variance")}

    def add(self, count: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> None:
        """Add the number of values of each channel, float64, with their means and variances."""
        # Unlike a formula with sums of squares, this never subtracts large, nearly equal numbers.
        total = self.count + count
        share = tf.cast(tf.math.divide_no_nan(count, total), mean.dtype)
        shift = mean - self.mean
        growth = variance - self.variance + (1 - share) * shift**2
        # A micro-batch without values has NaN moments and a share of zero.
        self.variance.assign_add(tf.math.multiply_no_nan(growth, share))
        self.mean.assign_add(tf.math.multiply_no_nan(shift, share))
        self.count.assign(total)

    def count_call(self, steps: int | tf.Variable) -> tf.Tensor:
        """Count a call, and return whether it is the last of the window, a bool scalar."""
        first = tf.equal(self.calls, 0)
        self.length.assign(tf.where(first, tf.cast(steps, tf.int64), self.length))
        self.calls.assign_add(1)
        return tf.identity(self.calls) >= tf.identity(self.length)

    def reset(self) -> tf.Operation:
        for variable in (self.calls, *self.moments):
            variable.assign(tf.zeros(variable.shape, variable.dtype))
        return tf.no_op()


def _count_values(
    inputs: tf.Tensor, axes: Sequence[int], keep_dims: bool = False, mask: tf.Tensor | None = None
) -> tf.Tensor:
    """Return the number of values of each channel, float64; a scalar if there is no mask."""
    shape = tf.shape(inputs, tf.int64)
    if mask is None:
        return tf.cast(tf.reduce_prod(tf.gather(shape, axes)), tf.float64)
    counted = tf.broadcast_to(tf.cast(mask, tf.float32)[..., tf.newaxis], shape)
    return tf.cast(tf.reduce_sum(counted, axes, keepdims=keep_dims), tf.float64)


def _bessel_correction(count: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return n / (n - 1), the factor that makes a variance unbiased, or 1 if n is at most 1."""
    return tf.cast(tf.where(count > 1, count / tf.maximum(count - 1, 1), 1), dtype)
