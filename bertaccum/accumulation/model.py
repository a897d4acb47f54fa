"""Models that accumulate gradients in `fit`, weighted by the divisor of each micro-batch's loss."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tf_keras

from bertaccum import _tf_compat
from bertaccum.accumulation import checks, contract, micro_batch, serialization, traced_step
from bertaccum.accumulation.batch_normalization import AccumBatchNormalization
from bertaccum.accumulation.contract import ON_PARTIAL, LossWeight, check_choice, own_class
from bertaccum.accumulation.micro_batch import MeasuredLoss
from bertaccum.accumulation.optimizer import AccumulatingOptimizer

# AccumulatingModel is a mixin, not a Model, because Keras changes the bases of Model's subclasses.
_Mixin: Any = tf_keras.Model if TYPE_CHECKING else object


def accumulate_gradients(
    model: tf_keras.Model,
    accumulation_steps: Any,
    on_partial: str = "apply",
    loss_weight: LossWeight | None = None,
) -> tf_keras.Model:
    """Make a model accumulate gradients in `fit`, `train_on_batch` and a custom `train_step`.

    Each micro-batch is weighted by the divisor of its loss: the number of examples, or the number
    of unmasked positions if the output or the loss has a mask. Every update therefore equals the
    update from one large batch with the same examples, whatever the sizes of the micro-batches.
    Regularization losses count once per update.

    Args:
      model: A functional, Sequential or subclassed model. It is changed in place and becomes an
        `AccumulatingModel` as well. If it is compiled, its optimizer is wrapped.
      accumulation_steps: Number of micro-steps in a window: an integer, a variable, or a function
        of the update number.
      on_partial: Treatment of a partial window at the end of an epoch, before validation: `apply`
        it, `carry` it over to the next epoch, or `drop` it. Except with `carry`, `fit` starts by
        dropping any partial window, also of a loaded model.
      loss_weight: A function of `y`, `y_pred` and `sample_weight` that returns the divisor of
        the batch's loss, a scalar. It is needed only if a loss does not return one value per
        example, because the divisor of such a loss is unknown.

    Returns:
      The same model. Its `compile` wraps any optimizer in an `AccumulatingOptimizer` with default
      options. For other options, compile the model with an `AccumulatingOptimizer`.

    Warns:
      UserWarning: If the model has layers that make exact accumulation impossible.

    Raises:
      TypeError: If `model` is not a tf_keras model or an argument has a wrong type.
      ValueError: If the model already accumulates or an argument has a wrong value.
    """
    checks.check_is_model(model)
    if isinstance(model, AccumulatingModel):
        raise contract.already_accumulates(model)
    accumulation_steps = checks.checked_steps(accumulation_steps, schedule=True)
    check_choice("on_partial", on_partial, ON_PARTIAL)
    for layer in model.submodules:
        if isinstance(layer, AccumBatchNormalization):
            _check_same_steps(f"layer {layer.name}", layer.accumulation_steps, accumulation_steps)
    warned_of = set[str]()
    if checks.accumulates(accumulation_steps):
        checks.warn_of_batch_normalization(model, warned_of)
    settings = contract.Settings(accumulation_steps, on_partial, loss_weight)
    names = {"_accumulation": settings, "_warned_of": warned_of}
    bases = (AccumulatingModel, type(model), _Fit)
    model.__class__ = type(AccumulatingModel.__name__, bases, names)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = model._get_optimizer(model.optimizer)
        _tf_compat.reset_compile_cache(model)
    return model


@tf_keras.saving.register_keras_serializable(package="bertaccum")
class AccumulatingModel(contract.PartialWindows, _Mixin):
    """A mixin that `accumulate_gradients` adds to a model's class; do not instantiate it."""

    def train_step(self, data: Any) -> Any:
        """Run the model's own `train_step`, with gradients weighted by the divisor of the loss."""
        start = traced_step.operations_so_far()
        if not self._loss_divisores():
            _tf_compat.replace_losses(self.compiled_loss, MeasuredLoss, micro_batch.correction)
        with micro_batch.micro_batch(_length(data)) as current:
            results = super().train_step(data)
        if not current.updates and self.trainable_variables:
            raise contract.none_accumulates(own_class(self))
        if self._accumulation.loss_weight and not current.weight_given:
            raise contract.ignored_loss_weight(own_class(self))
        if checks.accumulates(self._accumulation.steps):
            traced_step.warn_of_changed_weights(self, start, current.updates)
        optimizers = [update.optimizer for update in current.updates]
        for loss in current.corrections:
            loss.end_window(keep=bool(optimizers) and optimizers[0].in_window)
        self._note_optimizers(optimizers)
        self._check_losses()
        return results

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the model's own loss, which may have other arguments, and note its divisor."""
        loss_weight, current = self._accumulation.loss_weight, micro_batch.current()
        if loss_weight is not None and current is not None:
            given = contract.arguments_of_loss_weight(args, kwargs)
            current.size = tf.convert_to_tensor(loss_weight(*given))
            current.weight_given = True
        return super().compute_loss(*args, **kwargs)

    def _note_optimizers(self, optimizers: list[AccumulatingOptimizer]) -> None:
        seen = self._seen_optimizers()
        for optimizer in optimizers:
            if id(optimizer) not in seen:
                part = f"optimizer {contract.name_of(optimizer)}"
                with tf.init_scope():  # The value of a variable is unknown while a step is traced.
                    _check_same_steps(part, optimizer.accumulation_steps, self._accumulation.steps)
                seen[id(optimizer)] = optimizer

    def _loss_divisores(self) -> list[MeasuredLoss]:
        losses = _tf_compat.compiled_losses(self.compiled_loss)
        return [loss for loss in losses if isinstance(loss, MeasuredLoss)]

    def reset_metrics(self) -> None:
        """Reset the metrics, and start a new window of the logged losses."""
        super().reset_metrics()
        self._end_logged_window()

    def _end_logged_window(self) -> None:
        with self.distribute_strategy.scope():
            for loss in self._loss_divisores():
                loss.end_window()

    def _end_window(self, apply: bool) -> None:
        with self.distribute_strategy.scope():
            for optimizer in self._accumulating_optimizers():
                if optimizer.pending and apply:
                    # Eager steps use the present settings of the optimizer, so the end does, too.
                    optimizer.flush() if self.run_eagerly else optimizer.traced_flush()
                elif optimizer.pending:
                    optimizer.drop()
            self._end_windows_of_layers(apply)
        self._end_logged_window()

    def _end_windows_of_layers(self, apply: bool) -> None:
        for layer in self.submodules:
            if isinstance(layer, AccumBatchNormalization):
                layer.end_window() if apply else layer.drop_window()

    def _accumulating_optimizers(self) -> list[AccumulatingOptimizer]:
        used = dict(self._seen_optimizers())
        # An optimizer loaded with a partial window may not have been used yet.
        for optimizer in (*tf.nest.flatten(self.optimizer), *vars(self).values()):
            if isinstance(optimizer, AccumulatingOptimizer):
                used[id(optimizer)] = optimizer
        return list(used.values())

    def _get_optimizer(self, optimizer: Any) -> Any:
        # `compile` passes every optimizer to this hook; a WideDeepModel has a list of two.
        # Forget the window and the state of an optimizer that is replaced, and the layers' windows.
        self.__dict__.pop("_optimizers_seen", None)
        if checks.accumulates(self._accumulation.steps):  # Layers may have been unfrozen.
            checks.warn_of_batch_normalization(self, self._warned_of)
        again = getattr(self, "optimizer", None) is not None
        optimizers = tf.nest.map_structure(self._accumulating, super()._get_optimizer(optimizer))
        self.optimizer = optimizers
        if again and not any(one.pending for one in self._accumulating_optimizers()):
            self._end_windows_of_layers(apply=False)
        return optimizers

    def _accumulating(self, optimizer: Any) -> AccumulatingOptimizer:
        steps = self._accumulation.steps
        if isinstance(getattr(optimizer, "inner_optimizer", None), AccumulatingOptimizer):
            raise contract.loss_scale_outside()
        if not isinstance(optimizer, AccumulatingOptimizer):
            return AccumulatingOptimizer(optimizer, steps)
        _check_same_steps("its optimizer", optimizer.accumulation_steps, steps)
        optimizer.forget_flush()  # Settings may have changed since it was traced.
        return optimizer

    def _check_losses(self) -> None:
        for loss in _tf_compat.compiled_losses(self.compiled_loss):
            if getattr(loss, "reduction", "auto") not in ("auto", "sum_over_batch_size"):
                raise contract.no_mean(loss)

    def get_config(self) -> dict[str, Any]:
        """Return the model's own config and the arguments of `accumulate_gradients`."""
        return {
            "model": serialization.described(own_class(self), contract.own_config(self)),
            "accumulation_steps": serialization.plain_steps(self._accumulation.steps),
            "on_partial": self._accumulation.on_partial,
            "loss_weight": tf_keras.saving.serialize_keras_object(self._accumulation.loss_weight),
        }

    def get_compile_config(self) -> dict[str, Any] | None:
        """Return the arguments of `compile`, with the wrapped optimizer."""
        config = super().get_compile_config()
        if config and self.optimizer is not None:
            config["optimizer"] = tf_keras.saving.serialize_keras_object(self.optimizer)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> tf_keras.Model:
        """Create the model from the config that `get_config` returns."""
        model = tf_keras.layers.deserialize(config["model"], custom_objects)
        steps = serialization.revived(config["accumulation_steps"], custom_objects)
        loss_weight = serialization.revived(config["loss_weight"], custom_objects)
        return accumulate_gradients(model, steps, config["on_partial"], loss_weight)


# The older file formats store only the name of the class that `accumulate_gradients` creates.
tf_keras.saving.get_custom_objects()[AccumulatingModel.__name__] = AccumulatingModel


class _Fit(tf_keras.Model):
    """The last base class before `Model`, so that a model's own `fit` calls the `fit` of this one.

    The model's own method may have other arguments than `Model.fit`, such as no callbacks.
    """

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Call `Model.fit`, and treat partial windows as `on_partial` says."""
        bound = inspect.signature(super().fit).bind_partial(*args, **kwargs)
        given = bound.arguments.get("callbacks")
        listed = getattr(given, "callbacks", None)
        if listed is None:
            # First, so that other callbacks see the weights after the last update.
            bound.arguments["callbacks"] = [_EpochEnd(self), *tf.nest.flatten(given or [])]
        elif not any(isinstance(callback, _EpochEnd) for callback in listed):
            listed.insert(0, _EpochEnd(self))
        return super().fit(*bound.args, **bound.kwargs)


class _EpochEnd(contract.EpochEnd, tf_keras.callbacks.Callback):
    """A callback that ends the partial window of each epoch, before validation."""


def _check_same_steps(part: str, theirs: Any, steps: Any) -> None:
    if theirs is steps or serialization.plain_steps(theirs) == serialization.plain_steps(steps):
        return
    raise contract.other_steps(part, theirs, steps)


def _length(data: Any) -> tf.Tensor:
    """Return the number of examples in a batch of dense, ragged or sparse tensors, a scalar."""
    first = next(part for part in tf.nest.flatten(data) if part.shape.rank != 0)
    if isinstance(first, tf.RaggedTensor):
        return first.nrows(tf.int32)
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    # TensorFlow does not know the value of `tf.shape(first)[0]`, even if the shape is static.
    return tf.shape(first)[0] if first.shape[0] is None else tf.constant(first.shape[0])
