"""The number of operations that an update starts, which is what bounds its time on a GPU."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
import tf_keras
from small import CLASSIFICATION, TINY
from tensorflow.python.framework import config

from bertaccum.bert.encoder import set_recompute
from bertaccum.bert.model_source import ModelSource
from bertaccum.options.commands import TrainConfig
from bertaccum.planning.calculated_time import COMPILED_FLOAT32, FLOAT32, HALF, Operations
from bertaccum.training.recipe import build_model, make_optimizer
from bertaccum.training.step import make_update

# So wide that, as in BERT-Small, TensorFlow makes no constants of zeros.
TWO_LAYERS = dataclasses.replace(
    TINY, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024
)


def build(**options: Any) -> tuple[tf_keras.Model, Any]:
    own = TrainConfig(dropout=0.1, recompute="none", **options)
    model = build_model(own, ModelSource("tiny", TWO_LAYERS, None, None), outputs=2)
    return model, make_optimizer(own, 1000, 4)


def nodes(update: Any) -> tuple[int, int]:
    """Return the nodes of a micro-step, and those of the rest of an update.

    The numbers are those before TensorFlow's graph optimizer, without constants and arguments. They
    include both branches of a condition. A program that XLA compiles is one node.

    Args:
      update: Function that `make_update` returned, for windows of several micro-batches.
    """
    function = inspect.getclosurevars(update).nonlocals["update"]
    graph = function.get_concrete_function().graph.as_graph_def()
    library = {own.signature.name: own for own in graph.library.function}
    [body] = [node.attr["body"].func.name for node in graph.node if node.op == "While"]
    micro_step = _count(library.pop(body).node_def, library)
    return micro_step, _count(graph.node, library)


def _count(found: Iterable[Any], library: Mapping[str, Any]) -> int:
    """Return the number of nodes, with those of the functions that they call."""
    total = 0
    for node in found:
        total += node.op not in ("Const", "Placeholder")
        values = node.attr.values()
        called = [v.func for v in values if v.HasField("func")]
        called += [function for v in values for function in v.list.func]
        for function in called:
            own = library.get(function.name)
            if own is not None and not own.attr["_XlaMustCompile"].b:
                total += _count(own.node_def, library)
    return total


@pytest.fixture(autouse=True)
def operations_as_usual() -> Iterator[None]:
    """Turn off determinism, which adds nodes, and which a run in another test turns on."""
    was = config.is_op_determinism_enabled()
    config.disable_op_determinism()
    yield
    if was:
        config.enable_op_determinism()


@pytest.mark.parametrize(
    ("precision", "operations"), [("float32", FLOAT32), ("mixed_bfloat16", HALF)]
)
def test_update_without_xla(precision: str, operations: Operations) -> None:
    """With four layers, earlier ones had 1,734 and 1,895 nodes a micro-step, 1,706 in the rest."""
    model, optimizer = build(precision=precision)
    micro_step, rest = nodes(make_update(CLASSIFICATION, model, optimizer, 0, accumulate=True))
    assert micro_step == operations.step + 2 * operations.layer
    assert rest == operations.rest + 2 * operations.rest_layer


def test_recomputation_without_xla() -> None:
    model, optimizer = build()
    set_recompute(model.checkpoint_items["encoder"], True)
    micro_step, _ = nodes(make_update(CLASSIFICATION, model, optimizer, 0, accumulate=True))
    assert micro_step == pytest.approx(
        FLOAT32.step + 2 * (FLOAT32.layer + FLOAT32.recomputed), rel=0.01
    )


def test_update_with_xla() -> None:
    model, optimizer = build()
    update = make_update(CLASSIFICATION, model, optimizer, 0, accumulate=True, compile=True)
    micro_step, rest = nodes(update)
    assert micro_step <= COMPILED_FLOAT32.step
    assert rest <= 150
