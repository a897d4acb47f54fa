"""Keras 3 models that accumulate gradients in `fit`, weighted by the divisor of each loss."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from bertaccum.accumulation import contract
from bertaccum.accumulation.contract import LossWeight, own_class
from bertaccum.keras3 import _keras_compat, changing_state, micro_batch
from bertaccum.keras3.batch_normalization import AccumBatchNormalization
from bertaccum.keras3.micro_batch import MicroBatch, WindowLoss
from bertaccum.keras3.optimizer import AccumulatingOptimizer, checked_steps

_JAX = keras.config.backend() == "jax"
# AccumulatingModel is a mixin, not a Model, because Keras changes what Model's subclasses create.
_Mixin: Any = keras.Model if TYPE_CHECKING else object


def accumulate_gradients(
    model: keras.Model,
    accumulation_steps: Any,
    on_partial: str = "apply",
    loss_weight: LossWeight | None = None,
) -> keras.Model:
    """Make a model accumulate gradients in `fit`, `train_on_batch` and a custom `train_step`.

    Each micro-batch is weighted by the divisor of its loss: the number of examples, or the number
    of unmasked positions if the output or the loss has a mask. Every update therefore equals the
    update from one large batch with the same examples, whatever the sizes of the micro-batches.

    Args:
      model: A functional, Sequential or subclassed model. It is changed in place and becomes an
        `AccumulatingModel` as well. If it is compiled, its optimizer is wrapped.
      accumulation_steps: Number of micro-steps in a window; see `AccumulatingOptimizer`.
      on_partial: Treatment of a partial window at the end of an epoch, before validation: `apply`
        it, `carry` it over to the next epoch, or `drop` it. Except with `carry`, `fit` starts by
        dropping any partial window, also of a loaded model.
      loss_weight: A function of `y`, `y_pred` and `sample_weight` that returns the divisor of
        the batch's loss, a scalar. It is needed only if a loss does not return one value per
        example, because the divisor of such a loss is unknown.

    Returns:
      The same model. Its `compile` wraps any optimizer in an `AccumulatingOptimizer`.

    Warns:
      UserWarning: If the model has layers that make exact accumulation impossible.

    Raises:
      TypeError: If `model` is not a Keras 3 model or an argument has a wrong type.
      ValueError: If the model already accumulates or an argument has a wrong value.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"{type(model).__module__}.{type(model).__name__} is not a Keras 3 model; for tf_keras,"
            " use bertaccum.accumulate_gradients"
        )
    if isinstance(model, AccumulatingModel):
        raise contract.already_accumulates(model)
    contract.check_choice("on_partial", on_partial, contract.ON_PARTIAL)
    steps = checked_steps(accumulation_steps)
    for layer in _keras_compat.all_layers(model):
        if isinstance(layer, AccumBatchNormalization) and layer.accumulation_steps != steps:
            raise contract.other_steps(f"layer {layer.name}", layer.accumulation_steps, steps)
    warned_of = set[str]()
    if steps != 1:
        _check_activity_regularizers(model)
        _warn_of_batch_normalization(model, warned_of)
        _warn_of_changing_state(model)
    settings = contract.Settings(steps, on_partial, loss_weight)
    names = {"__module__": __name__, "_accumulation": settings, "_warned_of": warned_of}
    bases = (AccumulatingModel, type(model), _Fit)
    model.__class__ = type(AccumulatingModel.__name__, bases, names)
    if getattr(model, "optimizer", None) is not None:
        model._accumulate(again=True)
        model.train_function = None  # A compiled step calls the train_step of the old class.
    return model


def _trained_by_others(model: keras.Model, accumulating: list[AccumulatingOptimizer]) -> list[str]:
    parts = [v for v in vars(model).values() if isinstance(v, list | keras.optimizers.Optimizer)]
    found = [v for v in keras.tree.flatten(parts) if isinstance(v, keras.optimizers.Optimizer)]
    inner = [one.inner_optimizer for one in accumulating]
    known = {id(part) for one in inner for part in (one, *_keras_compat.innermost(one))}
    plain = [one for one in found if not isinstance(one, AccumulatingOptimizer)]
    others = [one for one in plain if one.built and id(one) not in known]
    return [f"those that optimizer {one.name!r} trains" for one in others]


def _check_activity_regularizers(model: keras.Model) -> None:
    layers = _keras_compat.all_layers(model)
    names = [one.name for one in layers if one.activity_regularizer is not None]
    if names and _keras_compat.sums_activities():
        raise ValueError(
            f"Keras {keras.__version__} sums activity regularizers ({', '.join(names)}) over the"
            " batch, so they cannot be accumulated together with a mean; use Keras 3.14 or later"
        )


def _warn_of_batch_normalization(model: keras.Model, known: set[str]) -> None:
    kind = keras.layers.BatchNormalization
    layers = [one for one in _keras_compat.all_layers(model) if isinstance(one, kind)]
    plain = [one for one in layers if not isinstance(one, AccumBatchNormalization)]
    names = [one.name for one in plain if one.trainable]
    contract.warn_of_batch_normalization(names, "Use AccumBatchNormalization", known)


def _warn_of_changing_state(model: keras.Model) -> None:
    contract.warn_of_changing_state(changing_state.names(model))


class AccumulatingModel(contract.PartialWindows, _Mixin):
    """A mixin that `accumulate_gradients` adds to a model's class; do not instantiate it."""

    optimizer: Any

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the model, and wrap its optimizer in an `AccumulatingOptimizer`."""
        again = self.compiled
        super().compile(*args, **kwargs)
        self._accumulate(again)

    def _accumulate(self, again: bool) -> None:
        """Make the optimizer accumulate, and the losses report their divisors.

        If the model is compiled `again` with an optimizer that is not in a window, the windows of
        layers are forgotten as well.
        """
        if self._accumulation.steps != 1:  # Layers may have been unfrozen.
            _warn_of_batch_normalization(self, self._warned_of)
        self.__dict__.pop("_optimizers_seen", None)
        tracker = functools.partial(WindowLoss, self._accumulation.steps)
        _keras_compat.replace_losses(self, micro_batch.MeasuredLoss, tracker)
        if self.optimizer is not None:
            self.optimizer = self._accumulating(self.optimizer)
        if again and not any(one.pending for one in self._accumulating_optimizers()):
            self._end_windows_of_layers(apply=False)

    def _accumulating(self, optimizer: Any) -> AccumulatingOptimizer:
        inside = getattr(optimizer, "inner_optimizer", None)
        # An AccumulatingOptimizer itself never contains another one.
        if isinstance(inside, AccumulatingOptimizer):
            if not isinstance(inside.inner_optimizer, keras.optimizers.LossScaleOptimizer):
                raise contract.loss_scale_outside()
            optimizer = inside  # `compile` scales the loss a second time.
        if isinstance(optimizer, AccumulatingOptimizer):
            self._check_steps("its optimizer", optimizer)
            return optimizer
        return AccumulatingOptimizer(optimizer, self._accumulation.steps)

    def _check_steps(self, part: str, optimizer: AccumulatingOptimizer) -> None:
        theirs, steps = optimizer.accumulation_steps, self._accumulation.steps
        if theirs != steps:
            raise contract.other_steps(part, theirs, steps)

    def train_step(self, *args: Any) -> Any:
        """Run the model's own `train_step`, with gradients weighted by the divisor of the loss.

        The arguments are those of the backend: the data, and on JAX the state before it.
        """
        with micro_batch.micro_batch(_examples(args[-1])) as current:
            if _JAX and self.optimizer is not None:
                current.first = self.optimizer.starts_window(args[0][2])
            results = super().train_step(*args)
        if not current.optimizers and self.trainable_variables:
            raise contract.none_accumulates(own_class(self))
        for one in current.optimizers:
            self._check_steps(f"optimizer {contract.name_of(one)}", one)
            self._seen_optimizers()[id(one)] = one
        contract.warn_of_changing_state(_trained_by_others(self, current.optimizers))
        if self._accumulation.loss_weight and not current.weight_given:
            raise contract.ignored_loss_weight(own_class(self))
        return results

    def _accumulating_optimizers(self) -> list[AccumulatingOptimizer]:
        used = dict(self._seen_optimizers())
        # An optimizer loaded with a partial window may not have been used yet.
        for optimizer in vars(self).values():
            if isinstance(optimizer, AccumulatingOptimizer):
                used[id(optimizer)] = optimizer
        return list(used.values())

    def make_train_function(self, force: bool = False) -> Any:
        """Compile the training step, again if a setting of the optimizer has changed."""
        changed = [one.settings_changed() for one in self._accumulating_optimizers()]
        return super().make_train_function(force=force or any(changed))

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the model's own loss, and note its divisor."""
        current = micro_batch.current()
        loss_weight = self._accumulation.loss_weight
        if current is not None and loss_weight is not None:
            current.size = loss_weight(*contract.arguments_of_loss_weight(args, kwargs))
            current.weight_given = True
        loss = super().compute_loss(*args, **kwargs)
        if current is not None and _JAX:
            # Otherwise, the divisor could not leave the function that the step differentiates.
            current.size = ops.stop_gradient(current.size)
        if current is None or self._accumulation.steps == 1:
            return loss
        if len(loss.shape):
            raise ValueError(
                f"compute_loss of {own_class(self).__name__} returns several values, which Keras"
                " sums; return their mean"
            )
        added = _keras_compat.added_losses(self)
        is_sum = any(micro_batch.has_values(one, current) for one in added)
        return self._summed(loss, current) if is_sum else loss

    def _summed(self, loss: Any, current: MicroBatch) -> Any:
        """Return a loss that is a sum over the examples, with regularizers once per window."""
        variables = [v for v in self.trainable_variables if v.regularizer is not None]
        sums = [one for one in self.losses if micro_batch.has_values(one, current)]
        micro_batch.report_sum(current, alone=len(sums) + len(variables) == len(self.losses))
        if not variables:
            return loss
        if current.first is None:
            self.optimizer.build(self.trainable_variables)
            current.first = self.optimizer.starts_window()
        regularization = sum(v.regularizer(v) for v in variables)
        return loss + (ops.cast(current.first, loss.dtype) - 1) * regularization

    def _end_window(self, apply: bool) -> None:
        for optimizer in self._accumulating_optimizers():
            optimizer.flush() if apply else optimizer.drop()
        self._end_windows_of_layers(apply)

    def _end_windows_of_layers(self, apply: bool) -> None:
        for layer in _keras_compat.all_layers(self):
            if isinstance(layer, AccumBatchNormalization):
                layer.end_window() if apply else layer.drop_window()

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile the model as a saved one was compiled."""
        kind: Any = own_class(self)
        base = keras.Model
        if (kind.compile, kind.compile_from_config) != (base.compile, base.compile_from_config):
            super().compile_from_config(config)
            return
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built and self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)

    def get_config(self) -> dict[str, Any]:
        """Return the model's own config and the arguments of `accumulate_gradients`."""
        kind = own_class(self)
        return {
            "model": {
                "module": kind.__module__,
                "class_name": kind.__name__,
                "config": contract.own_config(self),
                "registered_name": keras.saving.get_registered_name(kind),
            },
            "accumulation_steps": keras.saving.serialize_keras_object(self._accumulation.steps),
            "on_partial": self._accumulation.on_partial,
            "loss_weight": keras.saving.serialize_keras_object(self._accumulation.loss_weight),
        }

    def __reduce__(self) -> Any:
        # The class cannot be found by its name, so that a saved model is pickled in its place.
        return _keras_compat.unpickle_model, super().__reduce__()[1]

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> keras.Model:
        """Create the model from the config that `get_config` returns."""
        revive = keras.saving.deserialize_keras_object
        names = ("model", "accumulation_steps", "loss_weight")
        model, steps, loss_weight = (revive(config[name], custom_objects) for name in names)
        return accumulate_gradients(model, steps, config["on_partial"], loss_weight)


# Keras looks up the classes that `accumulate_gradients` creates by their name.
keras.saving.get_custom_objects()[AccumulatingModel.__name__] = AccumulatingModel


class _Fit(keras.Model):
    """The last base class before `Model`, so that a model's own `fit` calls the `fit` of this one.

    The model's own method may have other arguments than `Model.fit`, such as no callbacks.
    """

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Call `Model.fit`, and treat partial windows as `on_partial` says."""
        bound = inspect.signature(super().fit).bind_partial(*args, **kwargs)
        given = bound.arguments.get("callbacks")
        if not isinstance(given, keras.callbacks.CallbackList):
            # First, so that other callbacks see the weights after the last update.
            bound.arguments["callbacks"] = [_EpochEnd(self), *keras.tree.flatten(given or [])]
        elif not any(isinstance(callback, _EpochEnd) for callback in given.callbacks):
            given.callbacks.insert(0, _EpochEnd(self))
        return super().fit(*bound.args, **bound.kwargs)


class _EpochEnd(contract.EpochEnd, keras.callbacks.Callback):
    """A callback that ends the partial window of each epoch, before validation."""


def _examples(data: Any) -> Any:
    return ops.shape(next(part for part in keras.tree.flatten(data) if part is not None))[0]
