"""Models whose `fit` knows each micro-batch's size and each epoch's end."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation import checks, measured_loss, micro_batch, serialization
from bertaccum.accumulation.batch_normalization import AccumBatchNormalization
from bertaccum.accumulation.optimizer import AccumulatingOptimizer

# A mixin: Keras would change the bases of a class that is a Model by itself.
_Mixin: Any = tf_keras.Model if TYPE_CHECKING else object


# What a micro-batch weighs: a function of y, y_pred and sample_weight.
LossWeight = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class _Settings:
    steps: Any
    on_partial: str
    loss_weight: LossWeight | None


def accumulate_gradients(
    model: tf_keras.Model,
    accumulation_steps: Any,
    on_partial: str = "apply",
    loss_weight: LossWeight | None = None,
) -> tf_keras.Model:
    """Make a model accumulate in `fit`, `train_on_batch` and its own `train_step`.

    An optimizer in `fit` is not told how many examples a gradient is of; a model knows.
    Each micro-batch weighs what its loss divided by: the number of examples, or of unmasked
    positions if the output or the loss has a mask. Every update is therefore that of its
    window as one batch, whatever the sizes of the batches. Regularization losses count once.

    Args:
      model: functional, Sequential or subclassed. It is changed in place: from now on it is
        an `AccumulatingModel`, too. If it is compiled, its optimizer is wrapped.
      accumulation_steps: micro-steps in a window, as of `AccumulatingOptimizer`.
      on_partial: what `fit` does, before it validates, with a window that the end of an
        epoch cuts short: `apply` it, `carry` it over to the next epoch, or `drop` it.
        Unless it is `carry`, a new `fit` drops the window that an interrupted one left.
      loss_weight: a function of `y`, `y_pred` and `sample_weight` that returns what the loss
        of this batch divided by, a scalar. Only needed for losses that do not return one value
        per example: the divisor of such a loss cannot be known.

    Returns:
      The model. Whatever optimizer it is compiled with next is wrapped; for options other
      than the defaults compile it with an `AccumulatingOptimizer`.

    Warns:
      UserWarning: the model has layers with which accumulation cannot be exact.

    Raises:
      ValueError, TypeError: not a model, or one that accumulates already, or arguments
        that make no sense.
    """
    checks.check_is_model(model)
    if isinstance(model, AccumulatingModel):
        raise ValueError(f"{model!r} accumulates already")
    accumulation_steps = checks.checked_steps(accumulation_steps, schedule=True)
    checks.check_choice("on_partial", on_partial, checks.ON_PARTIAL)
    for layer in model.submodules:
        if isinstance(layer, AccumBatchNormalization):
            _check_same_steps(f"layer {layer.name}", layer.accumulation_steps, accumulation_steps)
    if accumulation_steps != 1:
        checks.warn_of_batch_normalization(model)
    settings = {"_accumulation": _Settings(accumulation_steps, on_partial, loss_weight)}
    bases = (AccumulatingModel, type(model))
    model.__class__ = type(AccumulatingModel.__name__, bases, settings)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = model._get_optimizer(model.optimizer)
        _tf_compat.reset_compile_cache(model)
    return model


@tf_keras.saving.register_keras_serializable(package="bertaccum")
class AccumulatingModel(_Mixin):
    """What `accumulate_gradients` adds to a model's class; not to be called by itself."""

    _accumulation: _Settings

    def train_step(self, data: Any) -> Any:
        """Run the model's own step; its gradients weigh what the loss divided by."""
        with micro_batch.micro_batch(_length(data)) as present:
            results = super().train_step(data)
        self._check_step(present)
        self._seen_optimizers().update({id(o): o for o in present.optimizers})
        self._check_losses()
        return results

    def _check_step(self, present: micro_batch.MicroBatch) -> None:
        name = own_class(self).__name__
        if not present.optimizers:
            raise ValueError(
                f"no optimizer in the train_step of {name} accumulates;"
                " wrap each that it uses: AccumulatingOptimizer(optimizer, accumulation_steps)"
            )
        if self._accumulation.loss_weight and not present.weight_given:
            raise ValueError(
                f"the train_step of {name} does not call compute_loss, so loss_weight has no"
                " effect; call self.compute_loss(x, y, y_pred, sample_weight) there"
            )

    def _seen_optimizers(self) -> dict[int, AccumulatingOptimizer]:
        """Return the optimizers that the model's steps were seen to use, by identity."""
        # In the instance's dict, where Keras does not track them as parts of the model.
        return self.__dict__.setdefault("_accumulating", {})

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None
    ) -> Any:
        """Compute the model's own loss; note what it divides by."""
        measured_loss.measure(self.compiled_loss, y_pred)
        loss_weight, present = self._accumulation.loss_weight, micro_batch.present()
        if loss_weight is not None and present is not None:
            present.size = tf.convert_to_tensor(loss_weight(y, y_pred, sample_weight))
            present.weight_given = True
        return super().compute_loss(x, y, y_pred, sample_weight)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Fit as `Model.fit` does; `on_partial` decides on a window cut short by an epoch's end."""
        names = list(inspect.signature(super().fit).parameters)
        position = names.index("callbacks") if "callbacks" in names else len(args)
        if position < len(args):
            mine = self._with_epoch_end(args[position])
            args = (*args[:position], mine, *args[position + 1 :])
        else:
            kwargs["callbacks"] = self._with_epoch_end(kwargs.get("callbacks"))
        return super().fit(*args, **kwargs)

    def _with_epoch_end(self, callbacks: Any) -> Any:
        """Put ours first, so that the others see and save the weights as the window leaves them."""
        listed = getattr(callbacks, "callbacks", None)
        if listed is None:
            return [_EpochEnd(self), *tf.nest.flatten(callbacks or [])]
        if not any(isinstance(callback, _EpochEnd) for callback in listed):
            listed.insert(0, _EpochEnd(self))
        return callbacks

    def end_window(self) -> None:
        """Do with the window, if one has begun, what `on_partial` says.

        For training without `fit`, such as with `train_on_batch`.
        """
        on_partial = self._accumulation.on_partial
        if on_partial != "carry":
            self._end_window(apply=on_partial == "apply")

    def begin_window(self) -> None:
        """Forget the window that an interrupted `fit` left, unless `on_partial` is `carry`."""
        if self._accumulation.on_partial != "carry":
            self._end_window(apply=False)

    def _end_window(self, apply: bool) -> None:
        with self.distribute_strategy.scope():
            for optimizer in self._accumulating_optimizers():
                if optimizer.pending:
                    optimizer.traced_flush() if apply else optimizer.drop()
            for layer in self.submodules:
                if isinstance(layer, AccumBatchNormalization):
                    layer.end_window() if apply else layer.drop_window()

    def _accumulating_optimizers(self) -> list[AccumulatingOptimizer]:
        used = dict(self._seen_optimizers())
        # One that was loaded in the middle of a window may not have been used yet.
        if isinstance(self.optimizer, AccumulatingOptimizer):
            used[id(self.optimizer)] = self.optimizer
        return list(used.values())

    def _get_optimizer(self, optimizer: Any) -> AccumulatingOptimizer:
        # Keras' hook for what has to be around every optimizer that it compiles.
        optimizer, steps = super()._get_optimizer(optimizer), self._accumulation.steps
        if isinstance(getattr(optimizer, "inner_optimizer", None), AccumulatingOptimizer):
            raise ValueError(
                "put the LossScaleOptimizer, which mixed_float16 needs, inside:"
                " AccumulatingOptimizer(LossScaleOptimizer(optimizer), accumulation_steps)"
            )
        if not isinstance(optimizer, AccumulatingOptimizer):
            return AccumulatingOptimizer(optimizer, steps)
        _check_same_steps("its optimizer", optimizer.accumulation_steps, steps)
        return optimizer

    def _check_losses(self) -> None:
        for loss in _tf_compat.compiled_losses(self.compiled_loss):
            if getattr(loss, "reduction", "auto") not in ("auto", "sum_over_batch_size"):
                raise ValueError(
                    f"loss {loss.name} has the reduction {loss.reduction!r}; accumulation weighs"
                    " means: use reduction='sum_over_batch_size'"
                )

    def get_config(self) -> dict[str, Any]:
        """Return the model's own config, and how it accumulates."""
        return {
            "model": serialization.described(own_class(self), super().get_config()),
            "accumulation_steps": serialization.plain_steps(self._accumulation.steps),
            "on_partial": self._accumulation.on_partial,
            "loss_weight": tf_keras.saving.serialize_keras_object(self._accumulation.loss_weight),
        }

    def get_compile_config(self) -> dict[str, Any] | None:
        """Return what `compile` was given, with the optimizer as it is wrapped."""
        config = super().get_compile_config()
        if config and self.optimizer is not None:
            config["optimizer"] = tf_keras.saving.serialize_keras_object(self.optimizer)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> tf_keras.Model:
        """Make the model that `get_config` describes."""
        model = tf_keras.layers.deserialize(config["model"], custom_objects)
        steps = serialization.revived(config["accumulation_steps"], custom_objects)
        # Models that older versions saved have no loss_weight.
        loss_weight = serialization.revived(config.get("loss_weight"), custom_objects)
        return accumulate_gradients(model, steps, config["on_partial"], loss_weight)


# The older formats know only the name of the class that `accumulate_gradients` makes.
tf_keras.saving.get_custom_objects()[AccumulatingModel.__name__] = AccumulatingModel


def _accumulate_alike(clone: tf_keras.Model, original: AccumulatingModel) -> tf_keras.Model:
    settings = original._accumulation
    return accumulate_gradients(clone, settings.steps, settings.on_partial, settings.loss_weight)


_tf_compat.after_cloning_sequential(AccumulatingModel, _accumulate_alike)


class _EpochEnd(tf_keras.callbacks.Callback):
    """A callback that begins a window with `fit`, and ends it with the epoch, before validation."""

    def __init__(self, model: AccumulatingModel) -> None:
        super().__init__()
        self.set_model(model)

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.begin_window()

    def on_test_begin(self, logs: Any = None) -> None:
        self.model.end_window()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.end_window()


def own_class(model: tf_keras.Model) -> type:
    """Return the model's class, without what `accumulate_gradients` has added to it."""
    return type(model).__bases__[1] if isinstance(model, AccumulatingModel) else type(model)


def _check_same_steps(part: str, theirs: Any, steps: Any) -> None:
    if theirs is steps or serialization.plain_steps(theirs) == serialization.plain_steps(steps):
        return
    raise ValueError(
        f"the model accumulates over {steps} micro-steps, {part} over {theirs}; give both the same"
    )


def _length(data: Any) -> tf.Tensor:
    """Return the number of examples; tensors may be dense, ragged or sparse."""
    first = next(part for part in tf.nest.flatten(data) if part.shape.rank != 0)
    if isinstance(first, tf.RaggedTensor):
        return first.nrows()
    return first.dense_shape[0] if isinstance(first, tf.SparseTensor) else tf.shape(first)[0]
