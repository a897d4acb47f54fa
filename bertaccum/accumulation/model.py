"""The model-level face: a `fit` that knows each micro-batch's size and each epoch's end."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tf_keras

from bertaccum.accumulation import micro_batch, serialization
from bertaccum.accumulation.batch_normalization import AccumBatchNormalization
from bertaccum.accumulation.checks import (
    ON_PARTIAL,
    check_choice,
    check_model,
    check_steps_or_schedule,
)
from bertaccum.accumulation.optimizer import AccumulatingOptimizer

# A mixin: Keras would change the bases of a class that is a Model by itself.
_Mixin: Any = tf_keras.Model if TYPE_CHECKING else object


@dataclass(frozen=True)
class _Settings:
    steps: Any
    on_partial: str


def accumulate_gradients(
    model: tf_keras.Model, accumulation_steps: Any, on_partial: str = "apply"
) -> tf_keras.Model:
    """Makes a model accumulate in `fit`, `train_on_batch` and its own `train_step`.

    An optimizer in `fit` is not told how many examples a gradient is of; a model knows.
    Each micro-batch then weighs as much as it has examples (where the only output has a
    Keras mask, as it has unmasked positions), so that every update is that of its window
    as one batch, whatever the sizes of the batches. Regularization losses count once.

    Args:
      model: functional, Sequential or subclassed. It is changed in place: from now on it is
        an `AccumulatingModel`, too. If it is compiled, its optimizer is wrapped.
      accumulation_steps: micro-steps in a window, as of `AccumulatingOptimizer`.
      on_partial: what `fit` does, before it validates, with a window that the end of an
        epoch cuts short: `apply` it, `carry` it over to the next epoch, or `drop` it.

    Returns:
      The model. Whatever optimizer it is compiled with next is wrapped; for options other
      than the defaults compile it with an `AccumulatingOptimizer`.

    Raises:
      ValueError, TypeError: not a model, or one that accumulates already, or arguments
        that make no sense.
    """
    check_model(model, AccumulatingModel)
    check_steps_or_schedule(accumulation_steps)
    check_choice("on_partial", on_partial, ON_PARTIAL)
    settings = {"_accumulation": _Settings(accumulation_steps, on_partial)}
    bases = (AccumulatingModel, type(model))
    model.__class__ = type(AccumulatingModel.__name__, bases, settings)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = model._get_optimizer(model.optimizer)
        model._reset_compile_cache()
    return model


@tf_keras.saving.register_keras_serializable(package="bertaccum")
class AccumulatingModel(_Mixin):
    """What `accumulate_gradients` adds to a model's class; not to be called by itself."""

    _accumulation: _Settings

    def train_step(self, data: Any) -> Any:
        """The model's own step, whose gradients weigh as much as the micro-batch has examples."""
        x, _, _ = tf_keras.utils.unpack_x_y_sample_weight(data)
        with micro_batch.micro_batch(_length(x)):
            results = super().train_step(data)
        self._check_losses()
        return results

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None
    ) -> Any:
        """The model's own; of an output with a mask it is a mean over unmasked positions."""
        mask = getattr(y_pred, "_keras_mask", None)
        if mask is not None:
            micro_batch.resize(tf.math.count_nonzero(mask))
        return super().compute_loss(x, y, y_pred, sample_weight)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """As of `Model`; a window that an epoch's end cuts short meets `on_partial`."""
        bound = inspect.signature(super().fit).bind(*args, **kwargs)
        callbacks = bound.arguments.get("callbacks")
        if isinstance(callbacks, tf_keras.callbacks.CallbackList):
            callbacks.callbacks.insert(0, _EpochEnd(self))
        else:
            # First, so that the others see and save what the window has made of the weights.
            bound.arguments["callbacks"] = [_EpochEnd(self), *tf.nest.flatten(callbacks or [])]
        return super().fit(*bound.args, **bound.kwargs)

    def end_window(self) -> None:
        """Does with the window, if one has begun, what `on_partial` says.

        For training without `fit`, such as with `train_on_batch`.
        """
        on_partial = self._accumulation.on_partial
        if on_partial == "carry":
            return
        apply = on_partial == "apply"
        with self.distribute_strategy.scope():
            for optimizer in filter(None, map(_accumulating, vars(self).values())):
                optimizer.traced_flush() if apply else optimizer.drop()
            for layer in self.submodules:
                if isinstance(layer, AccumBatchNormalization):
                    layer.end_window() if apply else layer.drop_window()

    def _get_optimizer(self, optimizer: Any) -> Any:
        # Keras' hook for what has to be around every optimizer that it compiles.
        optimizer = super()._get_optimizer(optimizer)
        wrapped = _accumulating(optimizer)
        if wrapped is None:
            return AccumulatingOptimizer(optimizer, self._accumulation.steps)
        if wrapped.accumulation_steps != self._accumulation.steps:
            raise ValueError(
                f"the model accumulates over {self._accumulation.steps} micro-steps, its optimizer"
                f" over {wrapped.accumulation_steps}; give both the same"
            )
        return optimizer

    def _check_losses(self) -> None:
        losses = tf.nest.flatten(getattr(self.compiled_loss, "_losses", None) or [])
        for loss in losses:
            if getattr(loss, "reduction", "auto") not in ("auto", "sum_over_batch_size"):
                raise ValueError(
                    f"loss {loss.name} has the reduction {loss.reduction!r}; accumulation weighs"
                    " means: use reduction='sum_over_batch_size'"
                )

    def get_config(self) -> dict[str, Any]:
        """The model as it was before, and how it accumulates."""
        model = type(self).__bases__[1]
        return {
            "model": serialization.described(model, super().get_config()),
            "accumulation_steps": serialization.plain_steps(self._accumulation.steps),
            "on_partial": self._accumulation.on_partial,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> tf_keras.Model:
        """The reverse of `get_config`."""
        model = tf_keras.layers.deserialize(config["model"], custom_objects)
        steps = serialization.revived(config["accumulation_steps"], custom_objects)
        return accumulate_gradients(model, steps, config["on_partial"])


# The older formats know only the name of the class that `accumulate_gradients` makes.
tf_keras.saving.get_custom_objects()[AccumulatingModel.__name__] = AccumulatingModel


class _EpochEnd(tf_keras.callbacks.Callback):
    """Ends the window with the epoch, before validation if there is one."""

    def __init__(self, model: AccumulatingModel) -> None:
        super().__init__()
        self.set_model(model)

    def on_test_begin(self, logs: Any = None) -> None:
        self.model.end_window()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.end_window()


def _accumulating(optimizer: Any) -> AccumulatingOptimizer | None:
    """The accumulating optimizer that this is, or that is inside this loss scale."""
    if isinstance(optimizer, AccumulatingOptimizer):
        return optimizer
    if isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer):
        return _accumulating(optimizer.inner_optimizer)
    return None


def _length(inputs: Any) -> tf.Tensor:
    """How many examples there are; tensors may be dense, ragged or sparse."""
    first = tf.nest.flatten(inputs)[0]
    if isinstance(first, tf.RaggedTensor):
        return first.nrows()
    return first.dense_shape[0] if isinstance(first, tf.SparseTensor) else tf.shape(first)[0]
