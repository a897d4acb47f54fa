"""Calculated times on cards that are not in this machine."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import tensorflow as tf
from small import CLASSIFICATION
from tensorflow.python.framework import op_callbacks

from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.options.cards import CARDS
from bertaccum.options.commands import TrainConfig
from bertaccum.planning.calculated_time import FLOAT32, HALF, CalculatedTime, Operations
from bertaccum.planning.measurement import MeasurementRequest
from bertaccum.training.step_measurement import MeasuredModel

ROWS, LENGTH = 4, 128
NARROW = EncoderConfig(256, 3, 4, 1024, vocab_size=1000)
PRODUCTS = {"MatMul", "BatchMatMulV2", "Einsum"}
# Operations that move no data, or only look at shapes.
FREE = {"Reshape", "Identity", "Shape", "StridedSlice", "ExpandDims", "Squeeze", "ReadVariableOp"}


def update(steps: int = 4, rows: int = 8, length: int = 128, **options: Any) -> MeasurementRequest:
    request = MeasurementRequest([[(1, length)] * rows] * steps, "none")
    return dataclasses.replace(request, **options)


def seconds(card: str, precision: str, request: MeasurementRequest, **options: Any) -> float:
    time = CalculatedTime(CARDS[card], PRESET_CONFIGS["bert-base"], precision, **options)
    return time.update_seconds(request)


def test_times_are_ordered_as_on_real_cards() -> None:
    slow, fast = (seconds(name, "float32", update()) for name in ("gtx-1050-ti", "rtx-3060"))
    assert slow > 3 * fast
    # The GTX 1050 Ti has no fast float16, and the T4 has.
    assert seconds("gtx-1050-ti", "mixed_float16", update()) > 10 * slow
    t4 = seconds("t4", "float32", update())
    assert seconds("t4", "mixed_float16", update()) < t4 / 2
    # Fewer, larger micro-steps accumulate less often.
    assert seconds("t4", "float32", update(1, 32)) < t4 < seconds("t4", "float32", update(32, 1))
    assert seconds("t4", "float32", update(recompute="layer")) > 1.2 * t4
    moments, all_state = (
        seconds("t4", "float32", update(offload=name)) for name in ("moments", "all")
    )
    assert t4 < moments < all_state
    compiled = seconds("t4", "float32", update(padded=[(8, 128)] * 4))
    assert compiled < t4
    # Padding of compiled micro-batches counts.
    assert seconds("t4", "float32", update(padded=[(8, 256)] * 4)) > 1.9 * compiled
    frozen = seconds("t4", "float32", update(), train_layers=1, freeze_embeddings=True)
    assert frozen < 0.6 * t4
    # One of twelve layers computes all tokens instead of one.
    assert 1.05 < seconds("t4", "float32", update(), every_token=True) / t4 < 1.1


def test_host_bounds_small_steps_on_a_fast_card() -> None:
    time = CalculatedTime(CARDS["h200"], PRESET_CONFIGS["bert-small"], "float32")
    step = time.micro_step(1, 16, update())
    assert step.seconds == step.host > 10 * (step.products + step.moving)


@contextmanager
def counting(found: dict[str, int]) -> Iterator[None]:
    """Add up the bytes of the inputs and outputs of the operations that run, by their type."""

    def count(kind: Any, inputs: Any, _: Any, outputs: Any, *__: Any) -> None:
        kind = kind.decode() if isinstance(kind, bytes) else kind
        for tensor in (*inputs, *outputs):
            if tensor.dtype not in (tf.resource, tf.variant, tf.string):
                size = (tensor.shape.num_elements() or 0) * tensor.dtype.size
                found[kind] = found.get(kind, 0) + size

    op_callbacks.add_op_callback(count)
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)
        op_callbacks.remove_op_callback(count)


@functools.cache
def measured(precision: str) -> MeasuredModel:
    job = {
        "config": dataclasses.asdict(TrainConfig(precision=precision)),
        "encoder": dataclasses.asdict(NARROW),
        "labels": dataclasses.asdict(CLASSIFICATION.labels),
        "tsvs": [],
        "limit_bytes": None,
        "accumulation_steps": 2,
        "devices": 1,
    }
    return MeasuredModel(job, lambda *_: None)


def moved_in_update(steps: int, precision: str, recompute: str) -> int:
    model, found = measured(precision), {}
    request = update(steps, ROWS, LENGTH, recompute=recompute)
    window = model._window(request.micro_batches)
    run = model._update(recompute, True, False)
    with counting(found):
        run(window)
    return sum(size for kind, size in found.items() if kind not in PRODUCTS | FREE)


@pytest.mark.parametrize(
    ("precision", "of", "recompute"),
    [("float32", FLOAT32, "none"), ("mixed_bfloat16", HALF, "layer")],
    ids=["float32", "half, recomputed"],
)
def test_bytes_are_those_of_a_real_micro_step(
    precision: str, of: Operations, recompute: str
) -> None:
    one, two = (moved_in_update(steps, precision, recompute) for steps in (1, 2))
    hidden = of.hidden + (recompute == "layer") * of.recomputed_hidden
    tokens, scores = ROWS * LENGTH, LENGTH * NARROW.num_attention_heads
    expected = tokens * (2 * (hidden * 256 + of.scores * scores) + of.ends * 256)
    # Accumulators are no inputs and outputs: they are read and written in place.
    expected += (of.weights - 8) * NARROW.trained_parameters(None)
    assert two - one == pytest.approx(expected, rel=0.1)
