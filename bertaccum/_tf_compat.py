"""The private names of TensorFlow and tf_keras that bertaccum uses, all in one place.

Private are: names that begin with an underscore, `tf.__internal__`, `tensorflow.python` and
`tf_keras.src`. Every entry
was checked with tensorflow 2.20.0 and tf_keras 2.20.1 (`CHECKED_WITH`), and says what it relies
on. `tests/test_tf_compat.py` fails if one of them is gone or behaves differently, and
if another module of the package uses a private name that is not listed here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras
from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
from tensorflow.python.client import device_lib
from tensorflow.python.distribute import collective_all_reduce_strategy, multi_worker_util
from tensorflow.python.eager import context
from tf_keras.src.models import cloning

CHECKED_WITH = {"tensorflow": "2.20.0", "tf_keras": "2.20.1"}

# Private names that subclasses define, because there is no public hook, with the class that they
# are inherited from.
OVERRIDES: dict[str, type] = {
    # A LossScaleOptimizer around an optimizer reads these two.
    "_mesh": tf_keras.optimizers.Optimizer,
    "_run_with_dtensor": tf_keras.optimizers.Optimizer,
    # get_weights, set_weights and the .h5 format take the state from it.
    "_variables": tf_keras.optimizers.Optimizer,
    # tf.train.Checkpoint and SavedModel follow it. Keras' own keeps its first answer, and would
    # miss variables that are made later.
    "_trackable_children": tf_keras.optimizers.Optimizer,
    # apply_gradients calls it with all variables, before any of them is updated.
    "_apply_weight_decay": tf_keras.optimizers.AdamW,
    # `call` takes the moments of a batch from the first and moves each statistic with the second;
    # if the layer uses the fused kernel, the third does everything.
    "_calculate_mean_and_var": tf_keras.layers.BatchNormalization,
    "_assign_moving_average": tf_keras.layers.BatchNormalization,
    "_fused_batch_norm": tf_keras.layers.BatchNormalization,
    # `compile` passes every optimizer through it: here Keras puts a LossScaleOptimizer around.
    "_get_optimizer": tf_keras.Model,
}

# A base class whose attributes checkpoints track, and which Keras does not take for a layer's
# weights as it does a tf.Module. tf_keras' own base classes derive from it.
AutoTrackable: Any = tf.__internal__.tracking.AutoTrackable

# Calls one of two functions: at once if the predicate is a constant, else through tf.cond.
smart_cond: Callable[..., Any] = tf.__internal__.smart_cond.smart_cond


# --- Variables under a distribution strategy ------------------------------------------------


def local_component(variable: tf.Variable) -> tf.Variable:
    """Return this replica's component of a distributed variable, and any other as it is.

    `DistributedVariable._get` returns it. Only the component can be scattered to.
    """
    return variable._get() if hasattr(variable, "_get") else variable


def variable_key(optimizer: tf_keras.optimizers.Optimizer, variable: tf.Variable) -> Any:
    """Return the key by which tf_keras optimizers know a variable, the same on all replicas.

    `Optimizer._var_key` returns it; `Variable.ref()` differs between replicas.
    """
    return optimizer._var_key(variable)


# --- Optimizers -----------------------------------------------------------------------------


def mark_built(optimizer: tf_keras.optimizers.Optimizer) -> None:
    """Let an optimizer count as built.

    `set_weights` and `exclude_from_weight_decay` look at `Optimizer._built`.
    """
    optimizer._built = True


def is_wrapped_by_loss_scale(optimizer: tf_keras.optimizers.Optimizer) -> bool:
    """Return whether a `LossScaleOptimizer` has been put around an optimizer.

    It sets `_is_wrapped_by_loss_scale_optimizer` on what it wraps.
    """
    return getattr(optimizer, "_is_wrapped_by_loss_scale_optimizer", False)


def trackable_children(optimizer: Any, inner: Any, save_type: str, **kwargs: Any) -> dict[str, Any]:
    """Return what is saved of an optimizer around another one, by name.

    For a checkpoint that is all that the optimizer tracks, collected anew by
    `AutoTrackable._trackable_children`. A SavedModel gets that of the inner one alone: optimizers
    are loaded from there as a base class and without state, and two of them, one in the other,
    would claim the same count of iterations.
    """
    if save_type == "savedmodel":
        return inner._trackable_children(save_type, **kwargs)
    return AutoTrackable._trackable_children(optimizer, save_type, **kwargs)


def track(owner: Any, name: str, value: Any) -> Any:
    """Save an object with the checkpoints of its owner, and return it.

    `_track_trackable` does so without an attribute of that name. If such a checkpoint has been
    loaded already, the object gets its values at once.
    """
    owner._track_trackable(value, name)
    return value


def tracked_list() -> list[Any]:
    """Return an empty list that checkpoints save with its items, a `ListWrapper`."""
    return tf.__internal__.tracking.wrap([])


def uncounted_variables(optimizer: tf_keras.optimizers.Optimizer) -> list[tf.Variable]:
    """Return state that tf_keras leaves out of `Optimizer.variables`.

    That is Nadam's product of momenta, `_u_product`, which exists from the first build.
    """
    product = getattr(optimizer, "_u_product", None)
    return [] if product is None else [product]


def use_weight_decay(optimizer: tf_keras.optimizers.Optimizer, variable: tf.Variable) -> bool:
    """Return whether a variable decays: `exclude_from_weight_decay` can exempt it.

    `Optimizer._use_weight_decay` knows.
    """
    return optimizer._use_weight_decay(variable)


def adam_moments(optimizer: Any, variable: tf.Variable) -> tuple[tf.Variable, tf.Variable]:
    """Return Adam's first and second moment of a variable.

    `_momentums` and `_velocities` hold them, in the order that `_index_dict` gives by key.
    """
    index = optimizer._index_dict[variable_key(optimizer, variable)]
    return optimizer._momentums[index], optimizer._velocities[index]


def add_variable_on_present_device(optimizer: Any, *args: Any, **kwargs: Any) -> tf.Variable:
    """Make an optimizer variable where `tf.device` says.

    `Optimizer.add_variable_from_reference` would put it where the model's variable is; the
    private base class of `Optimizer` does not.
    """
    base: Any = super(tf_keras.optimizers.Optimizer, optimizer)
    return base.add_variable_from_reference(*args, **kwargs)


def legacy_name(optimizer: Any) -> str:
    """Return the name of a legacy optimizer, which is only in `_name`."""
    return optimizer._name


def build_legacy(optimizer: Any, variables: Any) -> None:
    """Create a legacy optimizer's slots and hyperparameters with `_create_all_weights`."""
    optimizer._create_all_weights(variables)


def legacy_argument(optimizer: Any, name: str) -> Any:
    """Return what a legacy optimizer's constructor got for an argument, None if unknown.

    It is under the argument's name, or under that with an underscore, as AdamWeightDecay's
    `_exclude_from_weight_decay`.
    """
    return getattr(optimizer, name, getattr(optimizer, f"_{name}", None))


# --- Models, losses and layers --------------------------------------------------------------


def reset_compile_cache(model: tf_keras.Model) -> None:
    """Make a compiled model trace its steps again, with `_reset_compile_cache`."""
    model._reset_compile_cache()


def compiled_losses(container: Any) -> list[Any]:
    """Return the losses that `compile` made, one an output, None for an output without.

    `LossesContainer._losses` holds them; it is a nest of what the user gave until it is built.
    """
    return tf.nest.flatten(getattr(container, "_losses", None) or [])


def replace_losses(container: Any, y_pred: Any, replace: Callable[[Any], Any]) -> None:
    """Replace each loss of a `LossesContainer`; what the user gave stays as it is.

    Args:
      container: `compiled_loss` of a model. `_user_losses` is None if there is no loss;
        `_losses` is a list after `build`.
      y_pred: the model's outputs, from which the container is built.
      replace: maps a loss to the one to use.
    """
    if container is None or container._user_losses is None:
        return
    if not container.built:
        container.build(y_pred)
    container._losses = [None if loss is None else replace(loss) for loss in container._losses]


def mask_of(tensor: tf.Tensor) -> tf.Tensor | None:
    """Return the mask that layers have put on a tensor, `_keras_mask`."""
    return getattr(tensor, "_keras_mask", None)


def is_graph_network(model: tf_keras.Model) -> bool:
    """Return whether a model is made of a graph of layers, `_is_graph_network`."""
    return getattr(model, "_is_graph_network", False)


def copy_trainable(source: tf_keras.Model, target: tf_keras.Model) -> None:
    """Copy a model's own `_trainable`; the public setter would change its layers, too."""
    target._trainable = source._trainable


def statistics_spec(layer: tf_keras.layers.BatchNormalization) -> tuple[tuple[int, ...], tf.DType]:
    """Return shape and type of a built layer's statistics; the type is at least float32.

    `_param_shape` and `_param_dtype` have them; gamma and beta are alike.
    """
    return layer._param_shape, layer._param_dtype


def data_format(layer: tf_keras.layers.BatchNormalization) -> str:
    """Return where the fused kernel finds the channels, such as NHWC, `_data_format`."""
    return layer._data_format


def after_cloning_sequential(kind: type, accumulate: Callable[[Any, Any], Any]) -> None:
    """From now on, let `tf_keras.models.clone_model` pass on each clone of a Sequential model.

    `clone_model` makes other models from their class or config, but builds a plain `Sequential`
    from the layers of a Sequential one, in `cloning._clone_sequential_model`, which is wrapped
    here.

    Args:
      kind: the class of models whose clones are passed on.
      accumulate: gets the clone and its original, and returns what `clone_model` is to return.
    """
    clone_sequential = cloning._clone_sequential_model

    @functools.wraps(clone_sequential)
    def wrapper(model: tf_keras.Model, *args: Any, **kwargs: Any) -> tf_keras.Model:
        clone = clone_sequential(model, *args, **kwargs)
        return accumulate(clone, model) if isinstance(model, kind) else clone

    cloning._clone_sequential_model = wrapper


# --- Graphs ---------------------------------------------------------------------------------

# The graphs of branches and loops, which belong to the function around them.
_CONTROL_FLOW_GRAPHS = ("CondBranchFuncGraph", "WhileCondFuncGraph", "WhileBodyFuncGraph")


def is_in_function_of(graph: Any, other: Any) -> bool:
    """Return whether a graph is `other` or that of a branch or loop inside it.

    Args:
      graph: of the present operations; None when executing eagerly.
      other: of the function, or None.
    """
    while graph is not other:
        if type(graph).__name__ not in _CONTROL_FLOW_GRAPHS:
            return False
        graph = graph.outer_graph
    return True


# --- Devices --------------------------------------------------------------------------------


def gpu_memory_limits() -> list[int]:
    """Return the bytes that TensorFlow may take of each GPU; starts TensorFlow.

    `device_lib.list_local_devices` knows them; the public lists of devices do not.
    """
    found = device_lib.list_local_devices()
    return [int(device.memory_limit) for device in found if device.device_type == "GPU"]


def set_heartbeat_timeout(
    cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver, seconds: int
) -> None:
    """Say after how long without a heartbeat TensorFlow aborts a worker; before any strategy.

    A strategy for several workers does the same without a time, which means ten seconds. The
    context takes the first settings only: later calls change nothing.
    """
    cluster_spec = cluster_resolver.cluster_spec()
    if context.context().coordination_service is None:
        context.context().configure_coordination_service(
            service_type="standalone",
            service_leader=multi_worker_util.coordination_leader(cluster_spec),
            coordinated_jobs=[
                CoordinatedJob(name=job, num_tasks=cluster_spec.num_tasks(job))
                for job in ("chief", "worker")
                if job in cluster_spec.jobs
            ],
            heartbeat_timeout_in_ms=seconds * 1000,
        )


def abort_collectives(message: str) -> None:
    """Fail the reductions that wait for other workers, and all later ones, in this process."""
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, message)


class CpuWorkersStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """A strategy for several workers, each with several logical devices of its CPU.

    TensorFlow's own takes the first CPU device of a worker only.

    Args:
      cluster_resolver: describes the workers.
      options: communication options.
      devices: number of logical CPU devices of each worker.
    """

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver,
        options: tf.distribute.experimental.CommunicationOptions,
        devices: int,
    ) -> None:
        extended = _CpuWorkersExtended(self, cluster_resolver, options, devices)
        # The constructor between the two would make an extended part of its own.
        tf.distribute.Strategy.__init__(self, extended)


class _CpuWorkersExtended(collective_all_reduce_strategy.CollectiveAllReduceExtended):
    """The part of a strategy that TensorFlow asks for the devices of this process."""

    def __init__(self, strategy: Any, cluster_resolver: Any, options: Any, devices: int) -> None:
        self._cpu_devices = devices  # The constructor asks for the devices.
        super().__init__(strategy, cluster_resolver, options)

    def _initialize_local_devices(
        self, cluster_resolver: Any, worker_device: str
    ) -> tuple[tuple[str, ...], str]:
        numbers = range(self._cpu_devices)
        return tuple(f"{worker_device}/device:CPU:{number}" for number in numbers), "CPU"
