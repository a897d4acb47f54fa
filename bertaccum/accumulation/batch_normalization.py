"""Batch normalization whose moving statistics are those of the whole window.

Accumulation can reproduce one half of what batch normalization does with a big batch. The
moving statistics, which inference uses, can be pooled over the micro-batches exactly. The
normalization of an example by all others in its batch cannot: a micro-batch is normalized,
and its gradient computed, before the rest of its window has been seen.
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

    For the same inputs to the layer, `moving_mean` and `moving_variance` equal those of
    `BatchNormalization` on the whole window as one batch, to the rounding of the type: their
    number of updates, their momentum and their values. The window's variance is that within
    the micro-batches plus that between their means (the law of total variance), each
    micro-batch weighing as much as it has values. The fused kernel of `BatchNormalization`,
    used for ranks 4 and 5, multiplies the variance that it keeps by n / (n - 1); so does this
    layer, with the n of the window.

    Accumulation cannot make training itself equal: each micro-batch is normalized with its own
    mean and variance. Its outputs, the gradients through them, the weights after an update and
    the inputs of later layers therefore differ from those of the big batch, the more so the
    smaller the micro-batch; one of a single value per channel is normalized to zero. If that
    matters, freeze the layer (`trainable = False`: then it
    normalizes with its moving statistics, and accumulation is exact), synchronize it over
    replicas, or use group or layer normalization, which look at one example at a time.

    The window ends with the `accumulation_steps`-th training call, or with `end_window()`.
    Frozen, or with `training=False`, nothing is accumulated.

    A layer that is called several times in a micro-step, as in a siamese network, has a
    window for each of these calls if the model is one that `accumulate_gradients` made; at
    the window's end they move the statistics one after the other, as they do in the big
    batch. Elsewhere the layer cannot tell a second call from a second micro-step. It warns
    when a function calls it twice, and counts every call.

    Under a distribution strategy each replica has its own window. With `synchronized`, a
    micro-batch is that of all replicas, and all come to the same statistics, which are
    those of everything that the replicas saw. Without, each moves its own, and what is read
    and saved is their mean, as with `BatchNormalization`: that lacks the variance between
    replicas.

    Weights are those of `BatchNormalization`, in the same order. The window so far is no
    weight, but `tf.train.Checkpoint` and the .keras format keep it: of several replicas
    their mean. Numbers are in float32 at least, also in mixed precision.

    Sources: Ioffe and Szegedy 2015, "Batch Normalization"; Chan, Golub and LeVeque 1979,
    "Updating formulae and a pairwise algorithm for computing sample variances".

    Args:
      accumulation_steps: training calls in a window: a number, or a variable that may
        change; a change takes effect at the next window.
      *args, **kwargs: those of `BatchNormalization`, such as `axis`, `momentum`, `epsilon`
        and `synchronized`; also its `fused`, of which False turns the kernel off.

    Raises:
      TypeError, ValueError: `accumulation_steps` makes no sense, or one of `renorm`,
        `virtual_batch_size` and `adjustment` is asked for.
    """

    # Class attributes, because Keras would make weights of variables, and dependencies of
    # other things, that are assigned to names which the class does not have.
    accumulation_steps: int | tf.Variable = 1
    _micro_batch: tuple[tf.Tensor, tf.Tensor, tf.Tensor] | None = None
    _last_graph: weakref.ref[Any] | None = None

    def __init__(self, accumulation_steps: int | tf.Variable, *args: Any, **kwargs: Any) -> None:
        steps = checked_steps(accumulation_steps)
        for option in _UNSUPPORTED:
            if kwargs.get(option):
                raise ValueError(f"AccumBatchNormalization has no {option}; leave it out")
        super().__init__(*args, **kwargs)
        self.accumulation_steps = steps

    def build(self, input_shape: Any) -> None:
        """Create the weights of `BatchNormalization`, and the window."""
        super().build(input_shape)
        self._window = self._new_window()
        # Of the second call in a micro-step, the third, and so on.
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
        """Normalize as `BatchNormalization` does; in training, add to the window."""
        outputs = super().call(inputs, training=training, mask=mask)
        self._micro_batch = None  # A tensor of a graph must not outlive it.
        return outputs

    def end_window(self) -> None:
        """Update the moving statistics from the window as far as it has come, if at all.

        For the end of training, or of an epoch that ends with a shorter window.
        """
        for window in self._windows if self.built else []:
            self._on_each_replica(functools.partial(self._commit, window))

    def drop_window(self) -> None:
        """Forget the window as far as it has come."""
        for window in self._windows if self.built else []:
            self._on_each_replica(window.reset)

    def _on_each_replica(self, function: Callable[[], Any]) -> None:
        strategy = strategy_outside_replicas(self.moving_mean)
        function() if strategy is None else strategy.run(function)

    # --- Where BatchNormalization takes moments and moves its statistics ---------------

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
        # No other replica's thread runs between this and the next function.
        self._micro_batch = (count, mean, variance)
        return mean, variance

    def _assign_moving_average(self, variable: tf.Variable, *_: Any) -> tf.Variable:
        # Called, if in training, for the mean and then for the variance: once is enough.
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
        """Outputs, and count, mean and population variance of the micro-batch."""
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
        # Not to count a call that fails because the data has come to its end.
        with tf.control_dependencies([count]):
            window.add(count, mean, variance)
            due = window.count_call(self.accumulation_steps)
        return tf.cond(due, functools.partial(self._commit, window), tf.no_op)

    def _warn_of_a_second_call(self) -> None:
        if micro_batch.present() is not None or tf.executing_eagerly():
            return
        graph = tf.compat.v1.get_default_graph()
        if self._last_graph is not None and self._last_graph() is graph:
            warnings.warn(
                f"a function calls {self.name} twice in training. Without accumulate_gradients"
                " each call counts as a micro-step, so the moving statistics are not those of"
                " the big batch if both calls belong to one micro-step",
                stacklevel=2,
            )
        self._last_graph = weakref.ref(graph)

    def _commit(self, window: pooled_moments.PooledMoments) -> tf.Operation:
        """Move the averages one step; communicates nothing, so that it may be in a cond."""
        count, mean, variance = (tf.identity(v) for v in window.moments)
        if self.fused:
            variance *= pooled_moments.bessel_correction(count, variance.dtype)
        move = super()._assign_moving_average
        # A channel of which the window has no values is left alone.
        move(self.moving_mean, mean, self.momentum, count)
        move(self.moving_variance, variance, self.momentum, count)
        return window.reset()

    # --- Saving -------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """Return the arguments; of a variable `accumulation_steps`, its value."""
        return {
            **super().get_config(),
            "accumulation_steps": serialization.plain_steps(self.accumulation_steps),
            "synchronized": self.synchronized,
            "fused": self.fused,
        }

    def save_own_variables(self, store: Any) -> None:
        """Save the weights and the window so far, for the .keras format."""
        super().save_own_variables(store)
        for name, variable in self._window_variables().items():
            store[name] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Load what `save_own_variables` saved."""
        names = set(store.keys())
        # The first step makes further windows, but a model that was just loaded has seen none.
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
