"""All uses of private names of Keras 3 in this package, checked with Keras 3.15.

One private name is TensorFlow's; `bertaccum._tf_compat` has the others, but imports tf_keras.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras.src.backend.common.masking import get_keras_mask


def mask_of(tensor: Any) -> Any | None:
    """Return the mask that Keras has attached to a tensor, or None."""
    # Tensors of JAX cannot have attributes, so Keras keeps their masks in a table.
    return get_keras_mask(tensor)


def sums_activities() -> bool:
    """Return whether Keras sums activity regularizers over a batch instead of taking the mean."""
    return tuple(int(part) for part in keras.__version__.split(".")[:2]) < (3, 14)


def added_losses(model: keras.Model) -> list[Any]:
    """Return what layers have passed to `add_loss`; Keras sums several values."""
    layers = model._flatten_layers()
    # On JAX, the losses of layers have been collected in the model.
    return model._losses_override or [one for each in layers for one in each._get_own_losses()]


def all_layers(model: keras.Model) -> list[keras.Layer]:
    """Return a model's layers, including those of nested models and layers."""
    return list(model._flatten_layers(include_self=False))


def replace_losses(
    model: keras.Model,
    by: Callable[[keras.losses.Loss], Callable[..., Any]],
    tracker: Callable[[str], keras.metrics.Metric],
) -> None:
    """Replace losses and their metrics in a model now, or when Keras builds their container."""
    # Not with setattr, which would add it to the model's own metrics.
    vars(model)["_loss_tracker"] = tracker("loss")
    container = getattr(model, "_compile_loss", None)
    if container is None:
        return

    def replace() -> None:
        container._flat_losses = [
            one._replace(loss=one.loss and by(one.loss)) for one in container._flat_losses
        ]
        # A model with several outputs also logs the loss of each.
        container._metrics[:] = [tracker(metric.name) for metric in container._metrics]

    if container.built:
        replace()
        return
    build = container.build

    def build_and_replace(*args: Any) -> None:
        build(*args)
        replace()

    container.build = build_and_replace


def unpickle_model(*args: Any) -> keras.Model:
    """Return a model from what `Model.__reduce__` returns for it."""
    return keras.Model._unpickle_model(*args)


def own_variables(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Return the variables of an optimizer without those of its inner optimizer."""
    return list(optimizer._variables)


def position(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> int:
    """Return the position of a variable among those that an optimizer was built with."""
    return int(optimizer._get_variable_index(variable))


def check_known(optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]) -> None:
    """Raise ValueError if an optimizer was not built with one of the variables."""
    optimizer._check_variables_are_known(variables)


def check_gradients(
    optimizer: keras.optimizers.Optimizer, grads: Sequence[Any], variables: Sequence[keras.Variable]
) -> None:
    """Raise ValueError if no variable has a gradient, and warn of variables without one."""
    optimizer._filter_empty_gradients(grads, variables)


def set_trained(optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]) -> None:
    """Set the variables that an optimizer trains, as `Optimizer.build` does."""
    positions = {optimizer._var_key(variable): i for i, variable in enumerate(variables)}
    # Not with setattr, which would count the model's variables as the optimizer's own.
    vars(optimizer).update(
        _trainable_variables=list(variables), _trainable_variables_indices=positions
    )


def trained(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Return the variables that an optimizer was built with."""
    return list(optimizer._trainable_variables)


def add_replicated(
    optimizer: keras.optimizers.Optimizer, shape: Sequence[int], dtype: str, **options: Any
) -> keras.Variable:
    """Return a new variable of an optimizer, zero, which TensorFlow replicas update separately.

    Outside of replicas and in files, its value is its `aggregation` over the replicas.
    """
    with keras.name_scope(optimizer.name, caller=optimizer):
        return keras.Variable(
            "zeros", tuple(shape), dtype, trainable=False, synchronization="on_read", **options
        )


def is_in_step(graph: Any) -> bool:
    """Return whether `fit` is tracing a step on TensorFlow, which it calls `one_step_on_data`."""
    while graph is not None:
        if getattr(graph, "name", None) == "one_step_on_data":
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def layout_of(variable: keras.Variable) -> Any | None:
    """Return how `keras.distribution` spreads a variable over devices, or None."""
    return getattr(variable, "_layout", None)


def local_component(variable: keras.Variable) -> Any:
    """Return this replica's component of a TensorFlow variable; only a component is sparse.

    Relies on `DistributedVariable._get`.
    """
    value = variable.value
    return value._get() if hasattr(value, "_get") else value


def skipped_hook(optimizer: keras.optimizers.Optimizer) -> str | None:
    """Return a method of an optimizer's own that accumulation would not call, or None.

    On JAX, Keras calls `stateless_apply` in place of `apply_gradients`. On TensorFlow,
    accumulation sums the gradients of replicas itself.
    """
    backend = keras.config.backend()
    hook = {"jax": "apply_gradients", "tensorflow": "_all_reduce_sum_gradients"}.get(backend, "")
    original = getattr(keras.optimizers.Optimizer, hook, None)
    own = getattr(optimizer, hook, None)
    # `list` is what `stop_reducing` has set.
    return hook if own is not list and getattr(own, "__func__", own) is not original else None


def stop_reducing(optimizer: keras.optimizers.Optimizer) -> None:
    """Make a TensorFlow optimizer use gradients as they are, without summing them over replicas."""
    for one in innermost(optimizer):
        one._all_reduce_sum_gradients = list


def show_moving_averages(optimizer: keras.optimizers.Optimizer) -> None:
    """Make a `LossScaleOptimizer` have the moving averages of the optimizer inside.

    Keras' callback `SwapEMAWeights` looks into one `inner_optimizer`, not into that one's.
    """
    name = "_model_variables_moving_average"
    inner = getattr(optimizer, "inner_optimizer", None)
    if hasattr(inner, name):
        # Not with setattr, which would count these variables as its own.
        vars(optimizer)[name] = getattr(inner, name)


def innermost(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    """Return the optimizers inside `LossScaleOptimizer` and `MultiOptimizer`, or the optimizer."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return list(getattr(optimizer, "optimizers", [optimizer]))
