"""A Keras 3 optimizer that accumulates gradients over micro-steps and applies one exact update."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
from keras import ops

from bertaccum.accumulation import contract
from bertaccum.accumulation.contract import applied_twice, skipped_hook, two_gradients, whole_steps
from bertaccum.keras3 import _keras_compat, micro_batch, replicas
from bertaccum.keras3.delegation import DelegatingOptimizer
from bertaccum.keras3.micro_batch import MicroBatch
from bertaccum.system.phrases import counted

_JAX = keras.config.backend() == "jax"


@keras.saving.register_keras_serializable(package="bertaccum")
class AccumulatingOptimizer(DelegatingOptimizer):
    """A Keras 3 optimizer that calls an inner optimizer once per window of micro-steps.

    The inner optimizer receives one gradient per update. Its clipping, weight decay, schedule,
    moving averages and `iterations` therefore count updates, not micro-steps. All other public
    attributes and methods are those of the inner optimizer, such as `clipnorm` and `momentum`.

    Args:
      optimizer: The inner optimizer, its name or its config. If it is a `LossScaleOptimizer`,
        gradients of the scaled loss are accumulated, and a window that overflows is skipped as a
        whole.
      accumulation_steps: Number of micro-steps in a window: an integer, or a function of the number
        of updates so far.
      name: Name of this optimizer.

    Raises:
      TypeError: If an argument has a wrong type, or accumulation could not call one of the
        optimizer's own methods.
      ValueError: If `optimizer` already accumulates, or `accumulation_steps` is less than 1.
    """

    accumulation_steps: Any

    def __init__(
        self,
        optimizer: Any,
        accumulation_steps: int | Callable[[Any], Any] = 4,
        name: str | None = None,
    ) -> None:
        super().__init__(_checked_inner(keras.optimizers.get(optimizer)), name or "accumulating")
        self.accumulation_steps = checked_steps(accumulation_steps)
        self._scales_alone = False  # Whether `scale_loss` was called outside of a model's step.

    # --- State ----------------------------------------------------------------------

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Create the state for `variables`; only these can be trained afterwards."""
        if self.built:
            return
        _checked_inner(self.inner_optimizer)  # Its settings may have changed.
        dtypes = {keras.backend.standardize_dtype(v.dtype) for v in variables}
        wide = "float64" if dtypes == {"float64"} else "float32"
        add = functools.partial(_keras_compat.add_replicated, self)
        self._step = add((), "int32", name="micro_step", aggregation="only_first_replica")
        self._weight = add((), wide, name="window_weight", aggregation="sum")
        self._sums = [self._new_sum(v) for v in variables]
        # Sets of positions whose variables had gradients in the same micro-step.
        self._together: set[frozenset[int]] = set()
        # Which variables have a gradient in this window; weight decay must not change the others.
        self._with_gradient = add(
            (len(variables),), "int32", name="with_gradient", aggregation="only_first_replica"
        )
        if not self.inner_optimizer.built:
            self.inner_optimizer.build(variables)
        _keras_compat.stop_reducing(self.inner_optimizer)
        _keras_compat.show_moving_averages(self.inner_optimizer)
        _keras_compat.set_trained(self, variables)
        self.built = True

    def _new_sum(self, variable: keras.Variable) -> keras.Variable:
        dtype = keras.backend.standardize_dtype(variable.dtype)
        # A sum of many numbers needs more digits than half precision has.
        dtype = "float32" if dtype in ("float16", "bfloat16") else dtype
        # A tf.Variable has a name, but no path.
        path = getattr(variable, "path", variable.name)
        name = f"{re.sub('[/:]', '_', path)}_gradient_sum"
        layout = _keras_compat.layout_of(variable)
        return _keras_compat.add_replicated(
            self, variable.shape, dtype, name=name, aggregation="sum", layout=layout
        )

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables: those of the window, then those of the inner optimizer."""
        return _keras_compat.own_variables(self) + self.inner_optimizer.variables

    @property
    def pending(self) -> bool:
        """Whether there is a partial window; do not read this inside a traced function."""
        return bool(self.built and ops.convert_to_numpy(self._step) > 0)

    # --- One micro-step -------------------------------------------------------------

    def scale_loss(self, loss: Any) -> Any:
        """Return the loss to differentiate: `loss` times the inner loss scale, if there is one.

        The scaled loss is divided by the number of micro-steps, and `apply` multiplies its
        gradients by this number. Otherwise a micro-batch's gradients could overflow float16 in
        windows that do not overflow as one large batch. A step that does not call this method gets
        the updates of a large batch whose step does not call it either.
        """
        if (current := micro_batch.current()) is None:
            self._scales_alone = True
        else:
            current.scaled.append(self)
        scaled = self.inner_optimizer.scale_loss(loss)
        return scaled / ops.cast(self._power_of_two(), scaled.dtype)

    def _power_of_two(self) -> Any:
        """Return the micro-steps, rounded up to divide exactly; 1 without a loss scale."""
        inner = self.inner_optimizer
        scaled = isinstance(inner, keras.optimizers.LossScaleOptimizer) or inner.loss_scale_factor
        return ops.exp2(ops.ceil(ops.log2(ops.cast(self._steps(), "float32")))) if scaled else 1.0

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Accumulate gradients, and update the variables if the window is complete.

        A variable without a gradient in the window does not change, except on JAX. A compiled step
        on TensorFlow knows only the sets of variables that had gradients in a micro-step traced so
        far, and the unions of two such sets. If the variables with gradients in a window form
        another set, a missing gradient counts as zero.

        Raises:
          ValueError: If no variable has a gradient, or the optimizer was not built with one of the
            variables.
        """
        variables, grads = list(trainable_variables or _keras_compat.trained(self)), list(grads)
        self.build(variables)
        current = self._current(variables)
        _keras_compat.check_known(self, variables)
        _keras_compat.check_gradients(self, grads, variables)
        pairs = [(v, g) for v, g in zip(variables, grads, strict=True) if g is not None]
        gradients = dict[int, Any]()
        for variable, gradient in pairs:
            position = _keras_compat.position(self, variable)
            if position in gradients:
                raise two_gradients(variable)
            gradients[position] = gradient
        if _JAX:
            state, trained = self._values()
            self._assign(*self._next_state(state, gradients, trained, current))
            return
        with replicas.after(gradients.values()):
            self._together.add(frozenset(gradients))
            self._accumulate(gradients, current)
        replicas.run_if(self._is_complete(), *self._updates())

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        """Call `apply`, and return the number of updates."""
        super().apply_gradients(grads_and_vars)
        return self.iterations

    def _current(self, variables: Sequence[keras.Variable] = ()) -> MicroBatch:
        """Return the current micro-batch; outside of an accumulating model, one of weight 1."""
        current = micro_batch.current()
        if current is None:
            twice = replicas.is_second_call(self, variables)
        else:
            twice = any(one is self for one in current.optimizers)
        if twice and self.accumulation_steps != 1:
            raise applied_twice(self)
        current = current or MicroBatch(1.0, scaled=[self] * self._scales_alone)
        current.optimizers.append(self)
        return current

    def starts_window(self, state: Sequence[Any] | None = None) -> Any:
        """Return whether the next micro-step starts a window, given the values of `variables`."""
        if state is None:
            return self._step == 0
        return state[[id(v) for v in self.variables].index(id(self._step))] == 0

    def _accumulate(self, gradients: dict[int, Any], current: MicroBatch) -> None:
        """Add a micro-step's gradients, by the position of each variable, and its weight."""
        dtypes = sorted({total.dtype for total in self._sums} | {self._weight.dtype})
        first = self.starts_window()
        trained = _keras_compat.trained(self)
        is_sum = contract.is_sum(current.targets, [trained[i] for i in gradients], self)
        shares = {d: current.shares(first, d, is_sum) for d in dtypes}
        divided = any(one is self for one in current.scaled)
        power = self._power_of_two() if divided else 1.0
        factors = {d: shares[d][0] * ops.cast(power, d) for d in dtypes}
        for position, gradient in gradients.items():
            total = self._sums[position]
            if self._is_overwritten(position):
                total.assign(ops.maximum(total, ops.cast(gradient, total.dtype)))
            else:
                gradient = replicas.mapped(current.without_nan, gradient)
                replicas.add(total, gradient, factors[total.dtype])
        now = ops.convert_to_tensor([int(i in gradients) for i in range(len(self._sums))], "int32")
        self._with_gradient.assign(ops.maximum(self._with_gradient, now))
        self._weight.assign_add(shares[self._weight.dtype][1])
        self._step.assign_add(1)

    def _is_overwritten(self, position: int) -> bool:
        """Return whether a "gradient" is a new value, such as a scale of float8 training.

        As in Keras' own accumulation, the value of a window is the maximum over its micro-steps.
        """
        return getattr(_keras_compat.trained(self)[position], "overwrite_with_gradient", False)

    def _is_complete(self) -> Any:
        return self._step >= self._steps()

    def _steps(self) -> Any:
        steps = self.accumulation_steps
        return steps(self.iterations) if callable(steps) else steps

    def _updates(self) -> tuple[Sequence[Callable[[], None]], Any]:
        """Return functions that update different variables, and the position of the one to call."""
        if not replicas.is_compiled(()):
            return [lambda: self._update(self._in_window())], 0
        trained = _keras_compat.trained(self)
        frozen = frozenset(i for i, v in enumerate(trained) if not v.trainable)
        pairs = {one | other | frozen for one in self._together for other in self._together}
        sets = sorted(pairs | {frozenset(range(len(trained)))}, key=len)
        masks = ops.convert_to_tensor(
            [[int(i in one) for i in range(len(trained))] for one in sets], "int32"
        )
        covering = ops.all(ops.greater_equal(masks, self._with_gradient), axis=1)
        updates = [functools.partial(self._update, one) for one in sets]
        return updates, ops.argmax(ops.cast(covering, "int32"))

    def _in_window(self) -> set[int]:
        """Return the positions of the variables that have a gradient in this window."""
        flags = ops.convert_to_numpy(ops.convert_to_tensor(self._with_gradient))
        return set(flags.nonzero()[0].tolist())

    def _update(self, positions: Iterable[int]) -> None:
        """Apply the mean of the window to the variables at these positions, and start a new one."""
        trained = _keras_compat.trained(self)
        chosen = [i for i in sorted(positions) if trained[i].trainable]
        *sums, weight = replicas.sums([*(self._sums[i] for i in chosen), self._weight])
        # Keras divides the loss of each replica by the number of replicas.
        sums_of = dict(zip(chosen, sums, strict=True))
        means = self._means(sums_of, weight / replicas.count())
        # Not `apply`, because the inner optimizer may have its own `apply_gradients`.
        self.inner_optimizer.apply_gradients([(mean, trained[i]) for i, mean in means.items()])
        self._reset()

    def _means(self, sums: dict[int, Any], weight: Any) -> dict[int, Any]:
        """Return the mean gradients from sums, by the positions of their variables."""
        return {
            i: total
            / (replicas.count() if self._is_overwritten(i) else ops.cast(weight, total.dtype))
            for i, total in sums.items()
        }

    def _reset(self) -> None:
        for variable in (*self._sums, self._weight, self._step, self._with_gradient):
            variable.assign(ops.zeros(variable.shape, variable.dtype))

    # --- JAX ------------------------------------------------------------------------

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> tuple[list[Any], list[Any]]:
        """Return the new values of the trainable variables and of the optimizer's variables."""
        gradients = {i: gradient for i, gradient in enumerate(grads) if gradient is not None}
        trained = list(trainable_variables)
        return self._next_state(optimizer_variables, gradients, trained, self._current())

    def _values(self) -> tuple[list[Any], list[Any]]:
        trained = _keras_compat.trained(self)
        return [v.value for v in self.variables], [v.value for v in trained]

    def _assign(self, trained: Sequence[Any], state: Sequence[Any]) -> None:
        variables = (*_keras_compat.trained(self), *self.variables)
        for variable, value in zip(variables, (*trained, *state), strict=True):
            variable.assign(value)

    def _next_state(
        self, state: list[Any], gradients: dict[int, Any], trained: list[Any], current: MicroBatch
    ) -> tuple[list[Any], list[Any]]:
        trainable = {i for i, v in enumerate(_keras_compat.trained(self)) if v.trainable}
        if missing := trainable - gradients.keys():
            _warn_of_missing_gradients(self, len(missing))
        with self._scope(state) as scope:
            self._accumulate(gradients, current)
            complete = self._is_complete()
        state = [scope.get_current_value(v) for v in self.variables]
        return ops.cond(
            complete, lambda: self._updated(state, trained), lambda: (list(trained), state)
        )

    def _updated(self, state: Sequence[Any], trained: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        own = len(_keras_compat.own_variables(self))
        with self._scope(state):
            means = self._means(dict(enumerate(self._sums)), self._weight)
        new, inner = self.inner_optimizer.stateless_apply(
            list(state[own:]), list(means.values()), list(trained)
        )
        with self._scope(state) as scope:
            self._reset()
        return list(new), [*map(scope.get_current_value, self.variables[:own]), *inner]

    def _scope(self, state: Sequence[Any]) -> keras.StatelessScope:
        return keras.StatelessScope(state_mapping=list(zip(self.variables, state, strict=True)))

    @functools.cached_property
    def _flushed(self) -> Callable[..., Any]:
        # Compiled, because the arithmetic of a compiled learning rate schedule differs in the last
        # digit from that of an eager one.
        import jax

        return jax.jit(self._updated)

    # --- Ends of epochs -------------------------------------------------------------

    def flush(self) -> None:
        """Apply a partial window, if any; the mean is over the examples it contains."""
        if not self.pending:
            return
        if not _JAX:
            replicas.on_each(self._step, functools.partial(self._update, self._in_window()))
            return
        self._assign(*self._flushed(*self._values()))

    def drop(self) -> None:
        """Discard a partial window."""
        if self.built:
            self._reset()

    # --- Saving ---------------------------------------------------------------------

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set the values of all `variables`, in their order."""
        for variable, value in zip(self.variables, weights, strict=True):
            variable.assign(value)

    def save_own_variables(self, store: Any) -> None:
        """Save the window; Keras saves the inner optimizer separately."""
        for number, variable in enumerate(_keras_compat.own_variables(self)):
            store[str(number)] = ops.convert_to_numpy(variable)

    def load_own_variables(self, store: Any) -> None:
        """Load what `save_own_variables` saved; warn if it is the state of another optimizer."""
        own = _keras_compat.own_variables(self)
        saved = [store[str(number)] for number in range(len(store.keys()))]
        if contract.fits_state(self, own, saved):
            for variable, value in zip(own, saved, strict=False):
                variable.assign(value)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments as serializable values."""
        serialize = keras.saving.serialize_keras_object
        return {
            "optimizer": serialize(self.inner_optimizer),
            "accumulation_steps": serialize(self.accumulation_steps),
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Create an optimizer from the config that `get_config` returns."""
        revive = keras.saving.deserialize_keras_object
        return cls(**{key: revive(value, custom_objects) for key, value in config.items()})


def checked_steps(steps: Any) -> Any:
    """Return the user's `accumulation_steps`, as an int unless it is a function."""
    if callable(steps):
        return steps
    return whole_steps(steps, "an integer or a function of the number of updates")


def _warn_of_missing_gradients(optimizer: AccumulatingOptimizer, count: int) -> None:
    warnings.warn(
        f"in a call of optimizer {contract.name_of(optimizer)}, {counted(count, 'variable')} had no"
        " gradient. On JAX, accumulation treats a missing gradient as zero, so weight decay and"
        " momentum change these variables as well; give each part of the model its own optimizer",
        stacklevel=4,
    )


def _checked_inner(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    for one in (optimizer, *_keras_compat.innermost(optimizer)):
        if isinstance(one, AccumulatingOptimizer) or one.gradient_accumulation_steps:
            raise ValueError(
                "this optimizer already accumulates; wrap its inner optimizer, without"
                " `gradient_accumulation_steps`"
            )
        if (hook := _keras_compat.skipped_hook(one)) is not None:
            raise skipped_hook(one, hook)
    return optimizer
