"""Tests of the private names of TensorFlow and tf_keras that bertaccum uses.

A failure means that a new version has changed one of them; adapt `_tf_compat.py`.
"""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import inspect
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from forked import output
from official.nlp.optimization import AdamWeightDecay
from tensorflow.python.distribute import collective_all_reduce_strategy

import bertaccum
from bertaccum import _tf_compat
from bertaccum.accumulation import accumulate_gradients

FOLDER = Path(bertaccum.__file__).parent
COMPAT = ("_tf_compat.py", "_keras_compat.py")
MODULES = sorted(path for path in FOLDER.glob("**/*.py") if path.name not in COMPAT)
LossScale = tf_keras.mixed_precision.LossScaleOptimizer
legacy = tf_keras.optimizers.legacy


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@functools.cache
def own_names() -> set[str]:
    """Return the private names of functions, classes, variables and attributes in bertaccum."""
    found = set()
    for node in (node for path in MODULES for node in ast.walk(ast.parse(path.read_text()))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own = isinstance(node.value, ast.Name) and node.value.id == "self"
            found |= {node.attr} if own else set()
    return found | {Path(name).stem for name in COMPAT}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_only_tf_compat_uses_private_names(path: Path) -> None:
    tree, own = ast.parse(path.read_text()), own_names()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            assert node.attr != "__internal__", ast.unparse(node)
            if is_private(node.attr) and ast.unparse(node.value) != "os":
                assert node.attr in own, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.module.startswith(("tf_keras.", "tensorflow.")), node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            name = ast.unparse(node.args[1]).strip("'")
            assert not is_private(name) or name in own, ast.unparse(node)


def our_classes() -> list[type]:
    names = [path.stem for path in MODULES if path.parent.name == "accumulation"]
    modules = [importlib.import_module(f"bertaccum.accumulation.{name}") for name in names]
    found = {c for module in modules for c in vars(module).values() if isinstance(c, type)}
    return [c for c in found if c.__module__.startswith("bertaccum.")]


def test_overridden_private_names_are_listed() -> None:
    """Any private name that a bertaccum class shares with its Keras base class is an override."""
    model = accumulate_gradients(tf_keras.Sequential([tf_keras.layers.Dense(1)]), 2)
    found = set()
    for kind in [*our_classes(), type(model)]:
        keras = [base for base in kind.__mro__ if base.__module__.startswith("tf_keras.")]
        theirs = {name for base in keras for name in vars(base)} | set(
            vars(tf_keras.optimizers.SGD())
            if issubclass(kind, tf_keras.optimizers.Optimizer)
            else ()
        )
        mine = [base for base in kind.__mro__ if base.__module__.startswith("bertaccum.")]
        found |= {n for base in mine for n in vars(base) if is_private(n) and n in theirs}
    # Keras sets this attribute on each class whose instances it saves.
    assert found - {"_keras_api_names"} == set(_tf_compat.OVERRIDES)


SIGNATURES = {
    "_trackable_children": "save_type, kwargs",
    "_apply_weight_decay": "variables",
    "_calculate_mean_and_var": "inputs, reduction_axes, keep_dims, mask",
    "_assign_moving_average": "variable, value, momentum, inputs_size",
    "_fused_batch_norm": "inputs, mask, training",
    "_get_optimizer": "optimizer",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_overridden_methods_have_the_expected_arguments(name: str) -> None:
    method = getattr(_tf_compat.OVERRIDES[name], name)
    assert ", ".join(list(inspect.signature(method).parameters)[1:]) == SIGNATURES[name]


def test_overridden_strategy_methods_have_the_expected_arguments() -> None:
    extended = collective_all_reduce_strategy.CollectiveAllReduceExtended
    method = extended._initialize_local_devices
    assert [*inspect.signature(method).parameters] == ["self", "cluster_resolver", "worker_device"]
    names = ["container_strategy", "cluster_resolver", "communication_options"]
    assert [*inspect.signature(extended).parameters][:3] == names


def test_installed_versions_are_those_checked() -> None:
    installed = {"tensorflow": tf.__version__, "tf_keras": tf_keras.__version__}
    for name, version in _tf_compat.CHECKED_WITH.items():
        assert installed[name].split(".")[:2] == version.split(".")[:2]


@pytest.mark.parametrize("name", ["_mesh", "_run_with_dtensor"])
def test_loss_scale_reads_and_sets_private_attributes(name: str) -> None:
    sgd, variable = tf_keras.optimizers.SGD(), tf.Variable(1.0)
    assert not _tf_compat.is_wrapped_by_loss_scale(sgd)
    scaled = LossScale(sgd)
    assert _tf_compat.is_wrapped_by_loss_scale(sgd)
    sgd._run_with_dtensor = sgd._mesh = False
    scaled.apply_gradients([(tf.constant(1.0), variable)])
    delattr(sgd, name)
    with pytest.raises(AttributeError, match=name):
        scaled.apply_gradients([(tf.constant(1.0), variable)])


def test_mixed_float16_wraps_all_optimizers_except_loss_scales() -> None:
    """`ScalingAccumulatingOptimizer` derives from LossScaleOptimizer for this reason."""
    model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
    model._set_dtype_policy("mixed_float16")
    plain, scaled = tf_keras.optimizers.SGD(), LossScale(tf_keras.optimizers.SGD())
    assert isinstance(model._get_optimizer(plain), LossScale)
    assert model._get_optimizer(scaled) is scaled


def test_local_component_supports_scatter_add() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        variable = tf.Variable(
            tf.zeros([2]),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        optimizer = tf_keras.optimizers.SGD()

    def scatter() -> None:
        component = _tf_compat.local_component(variable)
        assert not isinstance(component, tf.distribute.DistributedValues)
        component.scatter_add(tf.IndexedSlices(tf.constant([3.0]), tf.constant([1])))
        key = _tf_compat.variable_key(optimizer, component)
        assert key == _tf_compat.variable_key(optimizer, variable)

    strategy.run(scatter)
    assert variable.numpy().tolist() == [0.0, 3.0]
    plain = tf.Variable(1.0)
    assert _tf_compat.local_component(plain) is plain


def test_set_weights_needs_a_built_optimizer() -> None:
    class Bare(tf_keras.optimizers.Optimizer):
        def __init__(self) -> None:
            self._variables = [tf.Variable(1.0)]

    bare = Bare()
    with pytest.raises(ValueError, match="not yet been built"):
        bare.set_weights([np.float32(2.0)])
    _tf_compat.mark_built(bare)
    bare.set_weights([np.float32(2.0)])
    assert float(bare.variables[0]) == 2.0


def test_missing_gradients_are_found() -> None:
    _tf_compat.check_gradients([])
    _tf_compat.check_gradients([(tf.constant(1.0), tf.Variable(1.0)), (None, tf.Variable(1.0))])
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        _tf_compat.check_gradients([(None, tf.Variable(1.0))])


def test_checkpoints_include_variables_created_later() -> None:
    outer, inner = tf_keras.optimizers.SGD(), tf_keras.optimizers.SGD()
    before = _tf_compat.trackable_children(outer, inner, "checkpoint")
    outer.more = tf.Variable(1.0)
    assert set(_tf_compat.trackable_children(outer, inner, "checkpoint")) == {*before, "more"}
    saved = _tf_compat.trackable_children(outer, inner, "savedmodel", cache={})
    assert "more" not in saved and saved["_iterations"] is inner.iterations


def test_keras_caches_trackable_children() -> None:
    """`_trackable_children` is overridden for this reason."""
    sgd = tf_keras.optimizers.SGD()
    before = set(sgd._trackable_children())
    sgd.more = tf.Variable(1.0)
    assert set(sgd._trackable_children()) == before


def test_optimizer_variables_omit_the_momentum_product_of_nadam() -> None:
    nadam, variable = tf_keras.optimizers.Nadam(), tf.Variable(1.0)
    nadam.build([variable])
    [product] = _tf_compat.uncounted_variables(nadam)
    assert not any(product is counted for counted in nadam.variables)
    assert _tf_compat.uncounted_variables(tf_keras.optimizers.SGD()) == []


def test_adam_moments_and_weight_decay_exclusions_are_found() -> None:
    kernel, bias = tf.Variable(1.0, name="kernel"), tf.Variable(1.0, name="bias")
    adamw = tf_keras.optimizers.AdamW(weight_decay=0.1)
    adamw.exclude_from_weight_decay(var_names=["bias"])
    adamw.build([kernel, bias])
    assert _tf_compat.use_weight_decay(adamw, kernel)
    assert not _tf_compat.use_weight_decay(adamw, bias)
    adamw.apply_gradients([(tf.constant(2.0), kernel), (tf.constant(4.0), bias)])
    for variable, gradient in ((kernel, 2.0), (bias, 4.0)):
        first, second = _tf_compat.adam_moments(adamw, variable)
        np.testing.assert_allclose(float(first), 0.1 * gradient, rtol=1e-5)
        np.testing.assert_allclose(float(second), 0.001 * gradient**2, rtol=1e-4)


def test_adam_moments_are_replaced_where_keras_and_checkpoints_find_them() -> None:
    variables = [tf.Variable(1.0, name="kernel"), tf.Variable([1.0], name="bias")]
    adamw = tf_keras.optimizers.AdamW()
    _tf_compat.replace_adam_moments(adamw, lambda moment: moment)
    adamw.build(variables)
    before = adamw.variables
    new = {}

    def replace(moment: tf.Variable) -> tf.Module:
        new[moment.name] = tf.Module()
        return new[moment.name]

    _tf_compat.replace_adam_moments(adamw, replace)
    for variable in variables:
        moments = _tf_compat.adam_moments(adamw, variable)
        assert moments == tuple(new[f"{kind}/{variable.name}"] for kind in "mv")
    wanted = [new.get(variable.name, variable) for variable in before]
    assert all(one is other for one, other in zip(adamw.variables, wanted, strict=True))
    checkpoint = tf.train.Checkpoint(o=adamw)
    found = tf.train.TrackableView(checkpoint).descendants()
    assert all(any(module is part for part in found) for module in new.values())


def test_added_optimizer_variable_is_counted() -> None:
    sgd, added = tf_keras.optimizers.SGD(), tf.Variable(1.0)
    _tf_compat.add_optimizer_variable(sgd, added)
    assert sgd.variables[-1] is added


def test_components_are_those_of_all_replicas() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        variable = tf.Variable(1.0)
    assert _tf_compat.components(variable) == variable.values
    plain = tf.Variable(1.0)
    assert _tf_compat.components(plain) == (plain,)


def test_legacy_optimizers_are_built_and_read() -> None:
    variable = tf.Variable([1.0])
    sgd = legacy.SGD(momentum=0.9, name="mine")
    assert _tf_compat.legacy_name(sgd) == "mine"
    _ = sgd.iterations
    _tf_compat.build_legacy(sgd, [variable])
    assert len(sgd.weights) == 2  # `iterations` and the momentum.
    decaying = AdamWeightDecay(0.1, exclude_from_weight_decay=["bias"])
    assert _tf_compat.legacy_argument(decaying, "exclude_from_weight_decay") == ["bias"]
    assert _tf_compat.legacy_argument(sgd, "no_such_argument") is None


def test_compiled_losses_are_replaced() -> None:
    model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
    loss = tf_keras.losses.MeanSquaredError()
    model.compile("sgd", loss)
    assert _tf_compat.compiled_losses(None) == []
    other = tf_keras.losses.MeanAbsoluteError()
    replace = (lambda _: other, lambda loss: 0.5 * (loss is other))
    _tf_compat.replace_losses(model.compiled_loss, *replace)
    zeros, twos = tf.zeros([2, 1]), 2 * tf.ones([2, 1])
    assert float(model.compiled_loss(zeros, twos)) == 2.0  # The first call builds the container.
    assert _tf_compat.compiled_losses(model.compiled_loss) == [other]
    assert float(model.compiled_loss.metrics[0].result()) == 2.5
    model.compile("sgd")
    _tf_compat.replace_losses(model.compiled_loss, *replace)  # There is no loss.
    traced = model.make_train_function()
    _tf_compat.reset_compile_cache(model)
    assert model.train_function is None and traced is not None


def test_corrections_of_several_outputs_are_weighted() -> None:
    inputs = tf_keras.Input((1,))
    model = tf_keras.Model(inputs, {name: tf_keras.layers.Dense(1)(inputs) for name in "ab"})
    model.compile("sgd", {"a": "mse", "b": "mse"}, loss_weights={"a": 2.0, "b": 3.0})
    outputs = {name: tf.ones([2, 1]) for name in "ab"}
    losses: list[tf_keras.losses.Loss] = []
    _tf_compat.replace_losses(
        model.compiled_loss,
        lambda loss: losses.append(loss) or loss,
        lambda loss: 0.5 if loss is losses[0] else 0.25,
    )
    model.compiled_loss({name: tf.zeros([2, 1]) for name in "ab"}, outputs)
    results = [float(metric.result()) for metric in model.compiled_loss.metrics]
    assert results == [2 * 1.5 + 3 * 1.25, 1.5, 1.25]


def test_graphs_of_functions_and_branches_are_found() -> None:
    variable = tf.Variable(1.0)
    inner = tf.function(lambda: variable.assign(2.0))

    @tf.function
    def train_function(condition: tf.Tensor) -> tf.Tensor:
        inner()
        tf.cond(condition, lambda: variable.assign(3.0), lambda: variable)
        graph = tf.compat.v1.get_default_graph()
        assert _tf_compat.is_in_train_function(graph)
        found = {o.type: _tf_compat.called_graphs(o) for o in graph.get_operations()}
        assert [len(found[kind]) for kind in ("StatefulPartitionedCall", "If")] == [1, 2]
        branches = {o.type for branch in found["If"] for o in branch.get_operations()}
        assert "AssignVariableOp" in branches
        return variable

    train_function(tf.constant(True))
    assert not _tf_compat.is_in_train_function(tf.Graph())
    fitted = []

    class Model(tf_keras.Sequential):
        def train_step(self, data: object) -> dict[str, object]:
            fitted.append(_tf_compat.is_in_train_function(tf.compat.v1.get_default_graph()))
            return {"loss": tf.constant(0.0)}

    model = Model([tf_keras.layers.Dense(1)])
    for options in ({}, {"steps_per_execution": 2}, {"jit_compile": True}):
        model.compile("sgd", **options)
        model.fit(tf.zeros([2, 1]), batch_size=1, verbose=0)
    assert fitted == [True] * len(fitted) and len(fitted) >= 3


def test_lists_of_variables_can_be_called() -> None:
    optimizer = tf_keras.optimizers.SGD()
    assert optimizer.variables() == optimizer.variables
    assert _tf_compat.callable_list([1])() == [1]


def test_masks_and_graph_networks_are_recognized() -> None:
    ids = tf_keras.Input((3,))
    embedded = tf_keras.layers.Embedding(5, 2, mask_zero=True)
    assert _tf_compat.is_graph_network(tf_keras.Model(ids, embedded(ids)))
    assert not _tf_compat.is_graph_network(tf_keras.layers.Dense(1))
    output = embedded(tf.constant([[1, 0, 2]]))
    assert _tf_compat.mask_of(output).numpy().tolist() == [[True, False, True]]
    assert _tf_compat.mask_of(tf.zeros([])) is None


def test_copy_trainable_does_not_change_layers() -> None:
    source, target = (tf_keras.Sequential([tf_keras.layers.Dense(1)]) for _ in range(2))
    source.trainable = False
    _tf_compat.copy_trainable(source, target)
    assert not target.trainable and target.layers[0].trainable


def test_statistics_and_data_format_of_batch_normalization_are_found() -> None:
    layer = tf_keras.layers.BatchNormalization(dtype="float16")
    layer.build((None, 2, 2, 3))
    assert _tf_compat.statistics_spec(layer) == ((3,), tf.float32)
    assert _tf_compat.data_format(layer) == "NHWC"


def test_an_operation_waits_for_a_later_one() -> None:
    with tf.Graph().as_default():
        first, later = tf.constant(1), tf.constant(2)
        _tf_compat.wait_for(first.op, later.op)
        assert first.op.control_inputs == [later.op]


def test_smart_cond_calls_one_of_two_functions() -> None:
    def either(predicate: Any) -> Any:
        return _tf_compat.smart_cond(predicate, lambda: tf.constant(1), lambda: tf.constant(2))

    assert (int(either(True)), int(either(False))) == (1, 2)
    assert int(tf.function(either)(tf.constant(False))) == 2


def test_batch_normalization_calls_the_overridden_methods() -> None:
    called: list[str] = []

    class Recording(tf_keras.layers.BatchNormalization):
        def _calculate_mean_and_var(self, *args: Any, **kwargs: Any) -> Any:
            called.append("moments")
            return super()._calculate_mean_and_var(*args, **kwargs)

        def _assign_moving_average(self, variable: Any, *args: Any) -> Any:
            called.append("mean" if variable is self.moving_mean else "variance")
            return super()._assign_moving_average(variable, *args)

        def _fused_batch_norm(self, *args: Any, **kwargs: Any) -> Any:
            called.append("fused")
            return super()._fused_batch_norm(*args, **kwargs)

    Recording()(tf.ones([4, 3]), training=True)
    assert called == ["moments", "mean", "variance"]
    called.clear()
    Recording()(tf.ones([4, 2, 2, 3]), training=True)
    assert called[0] == "fused" and "moments" not in called


def test_graphs_of_branches_and_loops_belong_to_the_enclosing_function() -> None:
    inside: list[bool] = []

    @tf.function
    def other() -> Any:
        return tf.compat.v1.get_default_graph()

    @tf.function
    def function(flag: tf.Tensor) -> tf.Tensor:
        own = tf.compat.v1.get_default_graph()

        def note(*_: Any) -> tf.Tensor:
            graph = tf.compat.v1.get_default_graph()
            assert graph is not own
            inside.append(_tf_compat.is_in_function_of(graph, own))
            return tf.constant(False)

        tf.cond(flag, note, note)
        return tf.while_loop(note, lambda x: [note() | x], [flag])[0]

    function(tf.constant(True))
    assert inside and all(inside)
    with tf.Graph().as_default() as graph, tf.Graph().as_default() as another:
        assert not _tf_compat.is_in_function_of(graph, another)
    assert _tf_compat.is_in_function_of(None, None)


def test_devices_are_initialized_by_the_first_tensor() -> None:
    code = """
import tensorflow as tf
from bertaccum import _tf_compat
tf.config.list_physical_devices()
assert not _tf_compat.has_started()
tf.zeros([1])
assert _tf_compat.has_started()
"""
    output(code)


def test_first_heartbeat_timeout_is_kept() -> None:
    """The test needs a new process, because a context keeps its first settings."""
    code = """
import json, os, socket
with socket.socket() as free:
    free.bind(("localhost", 0))
    address = "localhost:%d" % free.getsockname()[1]
os.environ["TF_CONFIG"] = json.dumps(
    {"cluster": {"worker": [address]}, "task": {"type": "worker", "index": 0}})
import tensorflow as tf
from bertaccum import _tf_compat
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
_tf_compat.set_heartbeat_timeout(resolver, 40)
_tf_compat.set_heartbeat_timeout(resolver, 1)
tf.distribute.MultiWorkerMirroredStrategy(resolver)
used = _tf_compat.context.context().config.experimental.coordination_config
assert used.heartbeat_timeout_in_ms == 40_000, used
assert used.service_leader == "/job:worker/replica:0/task:0", used
assert [(job.name, job.num_tasks) for job in used.coordinated_job_list] == [("worker", 1)], used
reduce = lambda key: tf.raw_ops.CollectiveReduceV2(
    input=[1.0], group_size=1, group_key=key, instance_key=key, ordering_token=[],
    merge_op="Add", final_op="Id")
assert reduce(1).numpy() == [1.0]
_tf_compat.abort_collectives("a worker")
try:
    reduce(2)
except tf.errors.UnavailableError as error:
    assert "aborted by: a worker" in str(error), error
else:
    raise AssertionError("a reduction after the abort")
"""
    output(code)


def test_graphs_with_forgotten_gradients_are_released() -> None:
    @tf.custom_gradient
    def double(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return 2 * x, lambda upstream: 2 * upstream

    def traced() -> weakref.ref:
        function = tf.function(lambda: double(tf.constant(3.0)))
        return weakref.ref(function.get_concrete_function().graph)

    with _tf_compat.forgetting_custom_gradients():
        forgotten = traced()
    remembered = traced()
    gc.collect()
    assert forgotten() is None
    assert remembered() is not None  # TensorFlow keeps it.


def test_mirrored_strategies_of_one_process_reduce_independently() -> None:
    """The test needs a new process, because devices cannot be added later."""
    code = """
import tensorflow as tf
from bertaccum import _tf_compat
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
for size in (3, 5):
    strategy = _tf_compat.mirrored_strategy(["CPU:0", "CPU:1"])

    @tf.function
    def total():
        def own():
            return tf.distribute.get_replica_context().all_reduce("sum", tf.ones([size]))

        return strategy.experimental_local_results(strategy.run(own))

    assert [x.numpy().tolist() for x in total()] == [[2.0] * size] * 2
"""
    output(code)
