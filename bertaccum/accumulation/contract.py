"""Behavior, checks and messages that the accumulation libraries for tf_keras and Keras 3 share."""

from __future__ import annotations

import itertools
import numbers
import operator
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from bertaccum.system.phrases import counted, listed

# A function of y, y_pred and sample_weight that returns the weight of a micro-batch.
LossWeight = Callable[[Any, Any, Any], Any]
ON_PARTIAL = ("apply", "carry", "drop")
# The kinds of divisors of a loss that is a mean over the examples, and of one that Keras 3 divides
# by the sum of the sample weights.
EXAMPLES, WEIGHTS = "examples", "sample weights"
_DIFFERENT = {
    EXAMPLES: (
        "losses of two outputs return different numbers of values; return one value per example"
        " from both"
    ),
    WEIGHTS: (
        "the losses of two outputs are divided by the sums of different sample weights, so their"
        " gradients cannot be accumulated together; pass one array of sample weights for all"
        " outputs, or use reduction='sum_over_batch_size'"
    ),
}


class Settings(NamedTuple):
    """The arguments of `accumulate_gradients`."""

    steps: Any
    on_partial: str
    loss_weight: LossWeight | None


class PartialWindows:
    """The part of an accumulating model that knows when its windows end."""

    _accumulation: Settings
    _warned_of: set[str]  # Layers of batch normalization that a warning has named.

    def end_window(self) -> None:
        """Apply or drop a partial window, or leave it if `on_partial` is `carry`.

        Call this at the end of each epoch if you train without `fit`.
        """
        on_partial = self._accumulation.on_partial
        if on_partial != "carry":
            self._end_window(apply=on_partial == "apply")

    def begin_window(self) -> None:
        """Drop the partial window of an interrupted `fit`, unless `on_partial` is `carry`."""
        if self._accumulation.on_partial != "carry":
            self._end_window(apply=False)

    def _end_window(self, apply: bool) -> None:
        raise NotImplementedError

    def _seen_optimizers(self) -> dict[int, Any]:
        """Return the optimizers that the model's steps have used so far, keyed by `id`."""
        # Keras would track an attribute, but not an entry of `__dict__`, as a part of the model.
        return self.__dict__.setdefault("_optimizers_seen", {})


def own_class(model: Any) -> type:
    """Return the class that a model had before `accumulate_gradients` changed it."""
    return type(model).__bases__[1] if isinstance(model, PartialWindows) else type(model)


def own_config(model: Any) -> dict[str, Any]:
    """Return the config that a model would have if `accumulate_gradients` had not changed it.

    If the class of a model does not define `get_config`, tf_keras adds the constructor's arguments,
    and Keras 3 refuses those that it cannot save. The method is therefore called on an object with
    the model's attributes and its own class. The model keeps its class, because another thread may
    be training it.
    """
    kind = own_class(model)
    # A destructor of the user must not run when this object is deleted.
    plain: Any = object.__new__(type(kind.__name__, (kind,), {"__del__": lambda self: None}))
    object.__setattr__(plain, "__dict__", vars(model))
    config: dict[str, Any] = plain.get_config()
    return config


def fits_state(optimizer: Any, own: Sequence[Any], saved: Sequence[Any]) -> bool:
    """Return whether `saved` are values of the variables `own`; warn if they are another state."""
    # If a model was saved before its first step, its file contains no variables.
    if not saved or [tuple(v.shape) for v in saved] == [tuple(v.shape) for v in own]:
        return True
    warnings.warn(
        f"the state of optimizer {optimizer.name!r} is not loaded, because the file contains"
        f" {counted(len(saved), 'variable')} of another optimizer or of other"
        f" `accumulation_steps`, and this one has {len(own)}",
        stacklevel=3,
    )
    return False


class EpochEnd:
    """The methods of a callback that ends the partial window of each epoch, before validation."""

    def __init__(self, model: PartialWindows) -> None:
        super().__init__()
        self._accumulating = model

    def on_train_begin(self, logs: Any = None) -> None:
        self._accumulating.begin_window()

    def on_test_begin(self, logs: Any = None) -> None:
        self._accumulating.end_window()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._accumulating.end_window()


class Delegation:
    """An optimizer whose public attributes are those of the optimizers inside of it.

    Attributes that bertaccum's own classes define are its own.
    """

    def _is_own(self, name: str) -> bool:
        raise NotImplementedError

    def _owners(self) -> Sequence[Any]:
        """Return the optimizers inside: the innermost one, then a `LossScaleOptimizer` if any."""
        raise NotImplementedError

    def _note_change(self) -> None:
        """Note that an attribute of an optimizer inside was set."""

    def _owner(self, name: str) -> Any:
        owners = self._owners()
        for owner in owners:
            if hasattr(owner, name):
                return owner
        raise AttributeError(
            f"neither {type(self).__name__} nor its inner {type(owners[0]).__name__} has an"
            f" attribute {name!r}"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "accumulation_steps" and vars(self).get(name, value) is not value:
            raise ValueError(
                "`accumulation_steps` cannot be replaced, because compiled steps contain it; create"
                " the optimizer with a function of the number of updates"
            )
        if name.startswith("_") or self._is_own(name):
            super().__setattr__(name, value)
            return
        try:
            owner = self._owner(name)
        except AttributeError:
            if type(self).__module__.startswith("bertaccum."):
                raise
            super().__setattr__(name, value)  # A subclass may have attributes of its own.
            return
        setattr(owner, name, value)
        self._note_change()


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise ValueError if a value is not one of the choices."""
    if value not in choices:
        raise ValueError(f"`{name}` is {value!r}; choose one of {', '.join(choices)}")


def whole_steps(steps: Any, allowed: str) -> int:
    """Return the user's `accumulation_steps` as a Python int; `allowed` says what to pass instead.

    Raises:
      TypeError: If `steps` is not an integer.
      ValueError: If `steps` is less than 1.
    """
    if isinstance(steps, bool) or not isinstance(steps, numbers.Integral):
        raise TypeError(f"`accumulation_steps` is {steps!r}; pass {allowed}")
    if steps < 1:
        raise ValueError(f"`accumulation_steps` is {steps}; pass at least 1 micro-step")
    return int(steps)


def warn_of_batch_normalization(names: Sequence[str], instead: str, known: set[str]) -> None:
    """Warn about layers that do not pool statistics, except those whose names are known."""
    if new := [name for name in names if name not in known]:
        known.update(new)
        warnings.warn(
            f"accumulation cannot be exact with BatchNormalization ({', '.join(new)}), because"
            " each micro-batch is normalized separately and updates the moving statistics, unless"
            f" the model calls these layers with training=False. {instead}, freeze these layers, or"
            " use group or layer normalization",
            stacklevel=4,
        )


def skipped_hook(optimizer: Any, hook: str) -> TypeError:
    """Return the error for an inner optimizer whose own method accumulation could not call."""
    return TypeError(
        f"{type(optimizer).__name__} has its own {hook}, which accumulation would skip; change the"
        " window's mean gradient in apply_gradients instead, which is called once per update"
    )


def applied_twice(optimizer: Any) -> ValueError:
    """Return the error for an optimizer that a train_step calls more than once."""
    return ValueError(
        f"optimizer {name_of(optimizer)} is applied twice in one train_step, but each micro-step"
        " needs exactly one call; apply the gradients of all variables in one call, or give each"
        " part of the model its own optimizer"
    )


def two_gradients(variable: Any) -> ValueError:
    """Return the error for a variable that occurs twice in one call."""
    return ValueError(
        f"variable {variable.name} has two gradients in one call, but an update needs their sum;"
        " differentiate the sum of the losses, or add up the gradients"
    )


def none_accumulates(model_class: type) -> ValueError:
    """Return the error for a train_step in which no optimizer accumulates."""
    return ValueError(
        f"no optimizer in the train_step of {model_class.__name__} accumulates; wrap each optimizer"
        " that it uses: AccumulatingOptimizer(optimizer, accumulation_steps)"
    )


def already_accumulates(model: Any) -> ValueError:
    """Return the error for a model that is passed to `accumulate_gradients` twice."""
    return ValueError(f"{model!r} already accumulates; call accumulate_gradients only once")


def other_steps(part: str, theirs: Any, steps: Any) -> ValueError:
    """Return the error for a part of a model with another number of micro-steps."""
    of_model = counted(steps, "micro-step") if isinstance(steps, int) else steps
    return ValueError(
        f"the model accumulates over {of_model}, but {part} over {theirs}; give both the same"
        " `accumulation_steps`"
    )


def loss_scale_outside() -> ValueError:
    """Return the error for a `LossScaleOptimizer` around an `AccumulatingOptimizer`."""
    return ValueError(
        "the LossScaleOptimizer is outside; put it inside:"
        " AccumulatingOptimizer(LossScaleOptimizer(optimizer), accumulation_steps)"
    )


def arguments_of_loss_weight(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return `y`, `y_pred` and `sample_weight` from the arguments of `compute_loss`."""
    names = ("x", "y", "y_pred", "sample_weight")
    given = dict(zip(names, args, strict=False)) | kwargs
    return [given.get(name) for name in names[1:]]


def ignored_loss_weight(model_class: type) -> ValueError:
    """Return the error for a train_step that does not use the `loss_weight`."""
    return ValueError(
        f"the train_step of {model_class.__name__} does not call compute_loss, so `loss_weight`"
        " has no effect; call self.compute_loss(x, y, y_pred, sample_weight) there"
    )


def no_mean(loss: Any) -> ValueError:
    """Return the error for a loss that is not a mean over its batch."""
    return ValueError(
        f"loss {loss.name} has the reduction {loss.reduction!r}, but accumulation needs a mean; use"
        " reduction='sum_over_batch_size'"
    )


def report_divisor(
    micro: Any, kind: Hashable, size: Any, check_equal: Callable[[Any, Any, str], Any]
) -> None:
    """Set the kind and the size of a micro-batch's divisor, or check that it has the same already.

    Raises:
      ValueError: If the losses of the model are means over different numbers.
    """
    if micro.kind is None:
        micro.kind, micro.size = kind, size
    elif micro.kind != kind:
        raise ValueError(
            "two losses of this model are means over different numbers, such as the unmasked"
            " positions of different outputs, so their gradients cannot be accumulated together;"
            " give them the same mask, or pass sample weights of 0 instead of a mask"
        )
    elif kind in _DIFFERENT:
        check_equal(size, micro.size, _DIFFERENT[kind])


def warn_of_unknown_divisor(loss_name: str) -> None:
    """Warn about a loss that returns no values of single examples."""
    warnings.warn(
        f"loss {loss_name!r} returns one number for the whole batch, or one per feature, which"
        " accumulation treats as the mean over the examples. If the loss has another divisor,"
        " return one value per example or pass `loss_weight` to accumulate_gradients",
        stacklevel=2,
    )


def is_of_whole_batch(length: int | None, output: Sequence[int | None]) -> bool:
    """Return whether a loss has values neither of examples nor of their positions.

    Args:
      length: Length of its first axis; None if this depends on the data.
      output: Shape of the model's output; sizes that depend on the data are None.
    """
    sizes = itertools.takewhile(lambda size: size is not None, output[:-1] or output)
    return length is not None and length not in itertools.accumulate(sizes, operator.mul)


def has_value_per_example(length: int | None, examples: int | None) -> bool:
    """Return whether a loss that is added to the total loss has one value per example.

    Args:
      length: Length of its first axis; None if this depends on the data.
      examples: Number of examples; None if this depends on the data.

    Warns:
      UserWarning: If it has several values, but not one per example.
    """
    if length is None or length == examples:
        return True
    if length > 1:
        warnings.warn(
            f"a loss has {length} values, but not one per example, so accumulation treats each of"
            " them as a mean over the examples. If their sum should be minimized, return one value"
            " per example",
            stacklevel=2,
        )
    return False


# For each variable, by the `id` of its handle: whether the step has differentiated a sum over the
# examples (True), a mean (False), or both.
Targets = dict[int, set[bool]]


def is_sum(targets: Targets, variables: Sequence[Any], optimizer: Any) -> bool:
    """Return whether the gradients of variables are those of a sum over the examples.

    Warns:
      UserWarning: If the step has differentiated both a sum and a mean.
    """
    # Only TensorFlow notes targets; other backends differentiate only single numbers.
    handles = [id(variable.handle) for variable in variables] if targets else []
    kinds = set[bool]().union(*(targets.get(handle, ()) for handle in handles))
    if len(kinds) == 2:
        warnings.warn(
            "a train_step has differentiated a loss with one value per example, which is a sum, and"
            f" a mean for the same call of optimizer {name_of(optimizer)}. Accumulation treats both"
            " as means; differentiate tf.reduce_mean(loss)",
            stacklevel=2,
        )
    return kinds == {True}


# Values that losses have returned in this context. Each replica is a thread, and has its own list.
_RETURNED: ContextVar[list[Any]] = ContextVar("returned")


class _Recorder:
    """Stands for the `call` of a loss, and appends what it returns to `_RETURNED`.

    The replicas share it: if the loss communicates, each of them waits in its call for the others.
    """

    def __init__(self, loss: Any) -> None:
        self.call, self.own, self.users = loss.call, vars(loss).get("call"), 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        value = self.call(*args, **kwargs)
        _RETURNED.get([]).append(value)
        return value


@contextmanager
def recorded_values(loss: Any) -> Iterator[list[Any]]:
    """Return a list to which the `call` of a loss appends what it returns here, before the mean."""
    attributes, returned = vars(loss), list[Any]()
    recorder = attributes.get("call")
    if not isinstance(recorder, _Recorder):
        # In the dictionary, because a class may do more when an attribute is set.
        attributes["call"] = recorder = _Recorder(loss)
    recorder.users += 1
    token = _RETURNED.set(returned)
    try:
        yield returned
    finally:
        _RETURNED.reset(token)
        recorder.users -= 1
        if not recorder.users:
            del attributes["call"]
            if recorder.own is not None:
                attributes["call"] = recorder.own


def warn_of_changing_state(names: Sequence[str]) -> None:
    """Warn about weights that a train_step changes in the forward pass or by itself."""
    if names:
        warnings.warn(
            "accumulation cannot be exact with weights that change in the forward pass or by the"
            f" train_step itself ({listed(names, 3)}), because they change in each"
            " micro-batch instead of once per update",
            stacklevel=4,
        )


def warn_of_new_weights(optimizer: Any, earlier: Any) -> None:
    """Warn about an optimizer whose gradients depend on weights that an earlier one has updated."""
    warnings.warn(
        f"the gradients of optimizer {name_of(optimizer)} depend on weights that optimizer"
        f" {name_of(earlier)} has already updated in the same train_step. In the last micro-batch"
        " of a window these weights are new, in the others they are old; compute all gradients"
        " first, then apply them",
        stacklevel=2,
    )


def name_of(optimizer: Any) -> str:
    """Return the name of the optimizer inside an accumulating one."""
    inner = getattr(optimizer, "inner", None) or getattr(optimizer, "inner_optimizer", optimizer)
    return repr(getattr(inner, "name", optimizer.name))
