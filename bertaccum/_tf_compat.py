"""All uses of private names of TensorFlow and tf_keras in bertaccum.

A name is private if it starts with an underscore or belongs to `tf.__internal__`,
`tensorflow.python` or `tf_keras.src`. The docstring or comment of each entry states the behavior
that the entry relies on. All entries were checked with the versions in `CHECKED_WITH`.
`tests/test_tf_compat.py` fails if a private name is missing or behaves differently, or if another
module of the package uses one.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
import tf_keras
from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
from tensorflow.python.client import device_lib
from tensorflow.python.distribute import collective_all_reduce_strategy, multi_worker_util
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tf_keras.src.optimizers import utils as optimizer_utils
from tf_keras.src.optimizers.optimizer import CallableList

CHECKED_WITH = {"tensorflow": "2.20.0", "tf_keras": "2.20.1"}

# Private names that subclasses in bertaccum override because there is no public hook, each with the
# class that defines it.
OVERRIDES: dict[str, type] = {
    # A LossScaleOptimizer reads these two attributes of its inner optimizer.
    "_mesh": tf_keras.optimizers.Optimizer,
    "_run_with_dtensor": tf_keras.optimizers.Optimizer,
    # get_weights, set_weights and the .h5 format get the optimizer's variables from it.
    "_variables": tf_keras.optimizers.Optimizer,
    # The callback TensorBoard reads the schedule from it.
    "_learning_rate": tf_keras.optimizers.Optimizer,
    # tf.train.Checkpoint and SavedModel call it. The implementation in Keras caches its first
    # result, and would miss variables that are created later.
    "_trackable_children": tf_keras.optimizers.Optimizer,
    # apply_gradients calls it with all variables, before any of them is updated.
    "_apply_weight_decay": tf_keras.optimizers.AdamW,
    # `call` computes the mean and variance of a batch with the first method, and updates the moving
    # averages with the second. If the layer uses the fused kernel, the third method does both.
    "_calculate_mean_and_var": tf_keras.layers.BatchNormalization,
    "_assign_moving_average": tf_keras.layers.BatchNormalization,
    "_fused_batch_norm": tf_keras.layers.BatchNormalization,
    # `compile` calls it for every optimizer. Under mixed_float16, the method of Keras wraps the
    # optimizer in a LossScaleOptimizer.
    "_get_optimizer": tf_keras.Model,
}

# More groups of devices than a strategy creates.
_GROUPS_OF_A_STRATEGY = 1000

# A base class whose attributes are saved in checkpoints. If an attribute of a layer is a tf.Module,
# Keras adds the module's variables to the layer's weights; if it is an AutoTrackable, Keras does
# not. The base classes of tf_keras derive from AutoTrackable.
AutoTrackable: Any = tf.__internal__.tracking.AutoTrackable

# A function that calls one of two functions: directly if the predicate is a constant, otherwise
# with tf.cond.
smart_cond: Callable[..., Any] = tf.__internal__.smart_cond.smart_cond


# --- Variables under a distribution strategy ------------------------------------------------


def local_component(variable: tf.Variable) -> tf.Variable:
    """Return this replica's component of a distributed variable; return other variables unchanged.

    Relies on `DistributedVariable._get`. Only a component supports `scatter_add`.
    """
    return variable._get() if hasattr(variable, "_get") else variable


def components(variable: tf.Variable) -> tuple[tf.Variable, ...]:
    """Return a variable's copies on the replicas of this process: `DistributedVariable.values`."""
    return tuple(getattr(variable, "values", (variable,)))


def variable_key(optimizer: tf_keras.optimizers.Optimizer, variable: tf.Variable) -> Any:
    """Return the key by which a tf_keras optimizer identifies a variable.

    Relies on `Optimizer._var_key`. The key is the same on all replicas, unlike `Variable.ref()`.
    """
    return optimizer._var_key(variable)


def wait_for(operation: tf.Operation, other: tf.Operation) -> None:
    """Let an operation of a graph wait for another one, which may have been created after it.

    Relies on `Operation._add_control_input`.
    """
    operation._add_control_input(other)


# --- Optimizers -----------------------------------------------------------------------------


def mark_built(optimizer: tf_keras.optimizers.Optimizer) -> None:
    """Mark an optimizer as built.

    `set_weights` and `exclude_from_weight_decay` read `Optimizer._built`.
    """
    optimizer._built = True


def is_wrapped_by_loss_scale(optimizer: tf_keras.optimizers.Optimizer) -> bool:
    """Return whether an optimizer is inside a `LossScaleOptimizer`.

    `LossScaleOptimizer` sets `_is_wrapped_by_loss_scale_optimizer` on its inner optimizer.
    """
    return getattr(optimizer, "_is_wrapped_by_loss_scale_optimizer", False)


def check_gradients(grads_and_vars: list[Any]) -> None:
    """Raise ValueError if no variable has a gradient, and warn of variables without one.

    Relies on `filter_empty_gradients`, which `apply_gradients` of every optimizer calls.
    """
    optimizer_utils.filter_empty_gradients(grads_and_vars)


def trackable_children(optimizer: Any, inner: Any, save_type: str, **kwargs: Any) -> dict[str, Any]:
    """Return the objects to save for an optimizer with an inner optimizer, keyed by name.

    A checkpoint saves all objects that the outer optimizer tracks;
    `AutoTrackable._trackable_children` collects them on each call. A SavedModel saves only those
    of the inner optimizer: loading creates every optimizer as a base class without state, and two
    optimizers must not own the same `iterations`.

    Args:
      optimizer: The outer optimizer.
      inner: The inner optimizer.
      save_type: `checkpoint` or `savedmodel`.
      **kwargs: Other arguments of `_trackable_children`.
    """
    if save_type == "savedmodel":
        return inner._trackable_children(save_type, **kwargs)
    return AutoTrackable._trackable_children(optimizer, save_type, **kwargs)


def callable_list(items: list[Any]) -> list[Any]:
    """Return a list that returns itself when it is called, as `Optimizer.variables` does."""
    return CallableList(items)


def uncounted_variables(optimizer: tf_keras.optimizers.Optimizer) -> list[tf.Variable]:
    """Return the optimizer variables that `Optimizer.variables` omits.

    The only one is Nadam's product of momenta, `_u_product`, which `build` creates.
    """
    product = getattr(optimizer, "_u_product", None)
    return [] if product is None else [product]


def use_weight_decay(optimizer: tf_keras.optimizers.Optimizer, variable: tf.Variable) -> bool:
    """Return whether weight decay applies to a variable.

    Relies on `Optimizer._use_weight_decay`, which respects `exclude_from_weight_decay`.
    """
    return optimizer._use_weight_decay(variable)


def adam_moments(optimizer: Any, variable: tf.Variable) -> tuple[tf.Variable, tf.Variable]:
    """Return Adam's first and second moments for a variable.

    Relies on `_momentums` and `_velocities`, and on `_index_dict`, which maps keys to positions.
    """
    index = optimizer._index_dict[variable_key(optimizer, variable)]
    return optimizer._momentums[index], optimizer._velocities[index]


def add_optimizer_variable(optimizer: Any, variable: Any) -> None:
    """Add a variable or other trackable object to `Optimizer._variables`, and so to checkpoints."""
    optimizer._variables.append(variable)


def replace_adam_moments(optimizer: Any, replace: Callable[[Any], Any]) -> None:
    """Replace Adam's moments by other trackable objects.

    Relies on `_momentums` and `_velocities`, which `build` creates, and on `_variables`, which
    contains them as well.

    Args:
      optimizer: A tf_keras optimizer of the Adam family; nothing happens before it is built.
      replace: A function that maps a moment to its replacement.
    """
    if not hasattr(optimizer, "_momentums"):
        return
    moments = (*optimizer._momentums, *optimizer._velocities)
    new = {id(moment): replace(moment) for moment in moments}
    optimizer._momentums = [new[id(moment)] for moment in optimizer._momentums]
    optimizer._velocities = [new[id(moment)] for moment in optimizer._velocities]
    optimizer._variables = [new.get(id(v), v) for v in optimizer._variables]


def legacy_name(optimizer: Any) -> str:
    """Return the name of a legacy optimizer; relies on `_name`, as there is no public attribute."""
    return optimizer._name


def build_legacy(optimizer: Any, variables: Any) -> None:
    """Create a legacy optimizer's slots and hyperparameters; relies on `_create_all_weights`."""
    optimizer._create_all_weights(variables)


def legacy_argument(optimizer: Any, name: str) -> Any:
    """Return the value of a legacy optimizer's constructor argument, or None if unknown.

    Relies on an attribute with the argument's name, with or without a leading underscore, such as
    AdamWeightDecay's `_exclude_from_weight_decay`.
    """
    return getattr(optimizer, name, getattr(optimizer, f"_{name}", None))


# --- Models, losses and layers --------------------------------------------------------------


def reset_compile_cache(model: tf_keras.Model) -> None:
    """Make a compiled model trace its steps again; relies on `_reset_compile_cache`."""
    model._reset_compile_cache()


def compiled_losses(container: Any) -> list[Any]:
    """Return the compiled losses: one per output, or None for an output without a loss.

    Relies on `LossesContainer._losses`, which contains the user's losses until the container is
    built.
    """
    return tf.nest.flatten(getattr(container, "_losses", None) or [])


def replace_losses(
    container: Any, replace: Callable[[Any], Any], correction: Callable[[Any], tf.Tensor | float]
) -> None:
    """Replace each loss of a `LossesContainer`, and correct what it logs, as soon as it is built.

    Relies on `_user_losses`, which is None if there is no loss; on `_losses` and `_loss_weights`,
    which are lists after `build`, which the container calls itself; and on the metrics
    `_per_output_metrics` and `_total_loss_mean`, which it updates after it has called the losses.

    Args:
      container: The `compiled_loss` of a model.
      replace: A function that maps a loss to its replacement.
      correction: A function that maps a replacement to the number to add to its logged value.
    """
    if container is None or container._user_losses is None:
        return
    if not container.built:
        if "build" not in vars(container):
            container.build = functools.partial(_build_replaced, container, replace, correction)
        return
    container._losses = [None if loss is None else replace(loss) for loss in container._losses]
    losses = [
        (loss, 1.0 if weight is None else weight, metric)
        for loss, weight, metric in zip(
            container._losses, container._loss_weights, container._per_output_metrics, strict=True
        )
        if loss is not None
    ]
    for loss, _, metric in losses:
        if metric is not None:
            _add_when_updated(metric, [(loss, 1.0)], correction)
    weighted = [(loss, weight) for loss, weight, _ in losses]
    _add_when_updated(container._total_loss_mean, weighted, correction)


def _build_replaced(
    container: Any,
    replace: Callable[[Any], Any],
    correction: Callable[[Any], tf.Tensor | float],
    y_pred: Any,
) -> None:
    del container.build  # From here on, the method of the class.
    container.build(y_pred)
    replace_losses(container, replace, correction)


def _add_when_updated(
    metric: tf_keras.metrics.Mean,
    losses: list[tuple[Any, Any]],
    correction: Callable[[Any], tf.Tensor | float],
) -> None:
    update = metric.update_state

    def corrected(values: Any, sample_weight: Any = None) -> Any:
        # In mixed precision, the losses and what Keras adds to them may have different dtypes.
        total = tf.cast(values, metric.dtype)
        for loss, weight in losses:
            total += weight * tf.cast(correction(loss), metric.dtype)
        return update(total, sample_weight=sample_weight)

    metric.update_state = corrected


def mask_of(tensor: tf.Tensor) -> tf.Tensor | None:
    """Return the mask that a layer attached to a tensor as `_keras_mask`, or None."""
    return getattr(tensor, "_keras_mask", None)


def is_graph_network(model: tf_keras.Model) -> bool:
    """Return whether a model is a static graph of layers; relies on `_is_graph_network`."""
    return getattr(model, "_is_graph_network", False)


def copy_trainable(source: tf_keras.Model, target: tf_keras.Model) -> None:
    """Copy a model's `_trainable`; the public setter would also change the layers."""
    target._trainable = source._trainable


def statistics_spec(layer: tf_keras.layers.BatchNormalization) -> tuple[tuple[int, ...], tf.DType]:
    """Return the shape and the dtype (at least float32) of a built layer's statistics.

    Relies on `_param_shape` and `_param_dtype`, which gamma and beta share.
    """
    return layer._param_shape, layer._param_dtype


def data_format(layer: tf_keras.layers.BatchNormalization) -> str:
    """Return the data format of the fused kernel, such as NHWC; relies on `_data_format`."""
    return layer._data_format


# --- Graphs ---------------------------------------------------------------------------------

# Class names of the graphs of branches and loops. They count as part of the enclosing function.
_CONTROL_FLOW_GRAPHS = ("CondBranchFuncGraph", "WhileCondFuncGraph", "WhileBodyFuncGraph")


@contextlib.contextmanager
def forgetting_custom_gradients() -> Iterator[None]:
    """At the end of the context, release the graphs that were traced in it.

    When a graph is traced, `tf.custom_gradient` registers a function for each call and never
    removes it. The function refers to the graph, and the graph to the variables it uses. A process
    that trains one model after another would therefore keep all of them in memory. Gradients of the
    released graphs can no longer be computed.
    """
    registered = ops.gradient_registry._registry
    before = set(registered)
    try:
        yield
    finally:
        for name in registered.keys() - before:
            if name.startswith("CustomGradient-"):
                del registered[name]


def is_in_function_of(graph: Any, other: Any) -> bool:
    """Return whether a graph is `other` or the graph of a branch or loop inside `other`.

    Args:
      graph: The current graph, or None when executing eagerly.
      other: The graph of a function, or None.
    """
    while graph is not other:
        if type(graph).__name__ not in _CONTROL_FLOW_GRAPHS:
            return False
        graph = graph.outer_graph
    return True


def is_in_train_function(graph: Any) -> bool:
    """Return whether `Model.fit` is tracing its train function, which it calls `train_function`."""
    while graph is not None:
        if getattr(graph, "name", None) == "train_function":
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def called_graphs(operation: tf.Operation) -> list[Any]:
    """Return the graphs of the functions, branches or loops that an operation runs.

    Relies on `FuncGraph._get_function`. The last inputs of the operation are those of each graph.
    """
    attributes = operation.node_def.attr.values()
    called = [one for a in attributes for one in (a.func, *a.list.func) if one.name]
    functions = (operation.graph._get_function(one.name) for one in called)
    return [function.graph for function in functions if getattr(function, "graph", None)]


# --- Devices --------------------------------------------------------------------------------


def gpu_memory_limits() -> list[int]:
    """Return TensorFlow's memory limit on each GPU, in bytes; this initializes the devices.

    Relies on `device_lib.list_local_devices`; the public lists of devices do not contain the limit.
    """
    found = device_lib.list_local_devices()
    return [int(device.memory_limit) for device in found if device.device_type == "GPU"]


def has_started() -> bool:
    """Return whether TensorFlow has initialized its devices, without initializing them.

    Relies on `Context._initialized`.
    """
    return bool(context.context()._initialized)


def set_heartbeat_timeout(
    cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver, seconds: int
) -> None:
    """Set the time without a heartbeat after which TensorFlow aborts a worker.

    Call it before any strategy for several workers is created: such a strategy configures the
    coordination service with a time of ten seconds, and only the first configuration counts.
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


def slurm_tasks() -> dict[str, int]:
    """Return the number of tasks on each node of a Slurm step, in the order of their ranks.

    Relies on `SlurmClusterResolver._task_configuration`. Its `cluster_spec` sorts the nodes by
    name, so that node10 comes before node9, and it renumbers the visible GPUs.

    Raises:
      RuntimeError, ValueError: Slurm's variables are missing or contradict each other.
    """
    kind = tf.distribute.cluster_resolver.SlurmClusterResolver
    resolver = kind(gpus_per_node=0, gpus_per_task=0)  # By default, it asks nvidia-smi.
    return dict(resolver._task_configuration)


def abort_collectives(message: str) -> None:
    """Make all current and later reductions with other workers fail in this process."""
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, message)


def mirrored_strategy(devices: list[str]) -> tf.distribute.MirroredStrategy:
    """Return a strategy whose reductions do not depend on earlier strategies of this process.

    Relies on `_collective_key_base`, from which a strategy numbers its groups of devices.
    TensorFlow remembers the shapes that a group has reduced, and fails if a model with other shapes
    reduces in a group with the same number.
    """
    kind = tf.distribute.MirroredStrategy
    kind._collective_key_base += _GROUPS_OF_A_STRATEGY
    return kind(devices)


class CpuWorkersStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """A strategy for several workers, each with several logical CPU devices.

    TensorFlow's own strategy uses only the first CPU device of each worker.

    Args:
      cluster_resolver: The description of the workers.
      options: The communication options.
      devices: The number of logical CPU devices of each worker.
    """

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver,
        options: tf.distribute.experimental.CommunicationOptions,
        devices: int,
    ) -> None:
        extended = _CpuWorkersExtended(self, cluster_resolver, options, devices)
        # The constructor of MultiWorkerMirroredStrategy would create its own `StrategyExtended`.
        tf.distribute.Strategy.__init__(self, extended)


class _CpuWorkersExtended(collective_all_reduce_strategy.CollectiveAllReduceExtended):
    """The `StrategyExtended` of a `CpuWorkersStrategy`, which lists the devices of this process."""

    def __init__(self, strategy: Any, cluster_resolver: Any, options: Any, devices: int) -> None:
        self._cpu_devices = devices  # The base constructor calls _initialize_local_devices.
        super().__init__(strategy, cluster_resolver, options)

    def _initialize_local_devices(
        self, cluster_resolver: Any, worker_device: str
    ) -> tuple[tuple[str, ...], str]:
        numbers = range(self._cpu_devices)
        return tuple(f"{worker_device}/device:CPU:{number}" for number in numbers), "CPU"
