"""Batch normalization with exact moving statistics under gradient accumulation.

Accumulation reproduces only one part of batch normalization on a large batch. The moving
statistics, which inference uses, can be pooled exactly over the micro-batches. The normalization
of each example with the mean and variance of the large batch cannot be reproduced: a micro-batch
is normalized, and its gradient computed, before the rest of the window is read.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation import micro_batch, pooled_moments, serialization
from bertaccum.accumulation.checks import checked_steps
from bertaccum.accumulation.replicas import strategy_outside_replicas

_UNSUPPORTED = ("renorm", "virtual_batch_size", "adjustment")


@tf_keras.saving.register_keras_serializable(package="bertaccum")
class AccumBatchNormalization(tf_keras.layers.BatchNormalization):
    """A `BatchNormalization` that updates its moving statistics once per window.

    For the same inputs to the layer, `moving_mean` and `moving_variance` equal, up to rounding,
    those of `BatchNormalization` on the whole window as one large batch. They are updated with the
    same momentum and equally often. The variance of a window is the variance within its
    micro-batches plus the variance between their means (the law of total variance); each
    micro-batch is weighted by its number of values. The fused kernel of `BatchNormalization`,
    used for inputs of rank 4 and 5, multiplies the stored variance by n / (n - 1). This layer
    does the same, where n is the number of values in the whole window.

    Training itself still differs from training on the large batch, because each micro-batch is
    normalized with its own mean and variance. This changes the layer's outputs, their gradients,
    the weights after an update and the inputs of later layers. The smaller the micro-batch, the
    larger the difference; a micro-batch with one value per channel is normalized to zero. For
    exact training, freeze the layer (`trainable = False`), so that it normalizes with its moving
    statistics, or use group or layer normalization, which normalize each example separately. To
    reduce the difference, synchronize the layer over replicas.

    A window ends with the `accumulation_steps`-th training call or with `end_window()`. The
    layer accumulates nothing while it is frozen or called with `training=False`.

    A siamese network calls a layer several times in a micro-step. In a model changed by
    `accumulate_gradients`, each of these calls has its own window. When the windows end, they
    update the statistics one after another, as the calls do on the large batch. In other
    models the layer cannot tell a second call from a second micro-step. It then warns if a
    function calls it twice, and counts every call as a micro-step.

    Under a distribution strategy each replica has its own window. With `synchronized`, each
    micro-batch consists of the examples of all replicas, so that all replicas have the same
    exact statistics. Otherwise each replica updates its own statistics. As with
    `BatchNormalization`, their mean over replicas is used and saved; it does not include the
    variance between replicas.

    The weights are those of `BatchNormalization`, in the same order. A partial window is not
    a weight, but `tf.train.Checkpoint` and the .keras format save it, averaged over replicas.
    All statistics are at least float32, even in mixed precision.

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
        self._further_windows: list[pooled_moments.PooledMoments] = []

    def _new_window(self) -> pooled_moments.PooledMoments:
        with tf.init_scope():
            return pooled_moments.PooledMoments(*_tf_compat.statistics_spec(self))

    def _window_of(self, call: int) -> pooled_moments.PooledMoments:
        while len(self._further_windows) < call:
            self._further_windows.append(self._new_window())
        return self._windows[call]

    @property
    def _windows(self) -> list[pooled_moments.PooledMoments]:
        return [self._window, *self._further_windows]

    def call(self, inputs: Any, training: Any = None, mask: tf.Tensor | None = None) -> tf.Tensor:
        """Normalize as `BatchNormalization` does; in training, also add the batch to the window."""
        outputs = super().call(inputs, training=training, mask=mask)
        self._micro_batch = None  # A symbolic tensor must not outlive its graph.
        return outputs

    def end_window(self) -> None:
        """Update the moving statistics from a partial window, if there is one.

        Call this at the end of training. If partial windows do not carry over to the next epoch,
        call it at the end of each epoch.
        """
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
        count = pooled_moments.count_values(inputs, reduction_axes, keep_dims, mask)
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
        count = pooled_moments.count_values(inputs, axes)
        return outputs, count, mean, variance / pooled_moments.bessel_correction(count, dtype)

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

    def _commit(self, window: pooled_moments.PooledMoments) -> tf.Operation:
        """Update the moving statistics without communication, as it is forbidden in `tf.cond`."""
        count, mean, variance = (tf.identity(v) for v in window.moments)
        if self.fused:
            variance *= pooled_moments.bessel_correction(count, variance.dtype)
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
        """Save the weights and the partial window, for the .keras format."""
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
