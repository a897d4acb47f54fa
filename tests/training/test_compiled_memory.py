"""Memory of updates that XLA compiles, in processes with a memory limit."""

from __future__ import annotations

import pytest
from forked import output

pytestmark = pytest.mark.slow
# XLA assigns the same memory, but compiles faster.
FAST = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}

COMMON = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from bertaccum.distribution import device_memory
LIMIT = 256 * 2**20
device_memory.limit_memory(LIMIT)
device_memory.claim_memory()
import numpy as np, tensorflow as tf, tf_keras
from bertaccum.bert.encoder import set_recompute
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.model_source import ModelSource
from bertaccum.options.commands import TrainConfig
from bertaccum.data.windows import Window
from bertaccum.tasks.classification import Classification
from bertaccum.tasks.labels import Labels
from bertaccum.training.recipe import build_model
from bertaccum.training.recipe import make_optimizer
from bertaccum.training.step import make_update

def build(hidden, layers, recompute="none"):
    tf_keras.utils.set_random_seed(0)
    config = TrainConfig(dropout=0.1, learning_rate=1e-3, warmup_fraction=0.0)
    encoder = EncoderConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=2,
        intermediate_size=4 * hidden, vocab_size=500, max_position_embeddings=64)
    model = build_model(config, ModelSource("small", encoder, None, None), 2)
    set_recompute(model.checkpoint_items["encoder"], recompute == "layer")
    optimizer = make_optimizer(config, 100, 4)
    task = Classification(Labels.numbered(2))
    return model, optimizer, make_update(task, model, optimizer, 0, True, compile=True)

def window(length, *cuts):
    rows = cuts[-1]
    tokens = np.random.default_rng(0).integers(1, 500, rows * length).astype(np.int32)
    splits, labels = np.arange(rows + 1) * length, np.arange(rows) % 2
    return Window(tokens, splits, labels.astype(np.int32), np.array(cuts, np.int32))

def transient_bytes(update, window):
    update(window)  # XLA compiles.
    device_memory.reset_peak_memory()
    before = device_memory.used_bytes()
    update(window)
    return device_memory.peak_memory_bytes() - before

def variables(model, optimizer):
    own = [*optimizer.inner.variables, *optimizer.sums.variables]
    return list({id(v): v for v in [*model.variables, *own]}.values())
"""

OUT_OF_MEMORY = """
model, optimizer, update = build(64, 1)
# The first of the two micro-steps of the large cut needs little memory, the second all of it.
large, small = window(64, 0, 8, 64), window(64, *range(0, 65, 8))
taken = []
def take_all_but(left):
    # TensorFlow splits no block for an allocation of more than half of it.
    while (rest := LIMIT - device_memory.used_bytes() - left) > 0:
        taken.append(tf.raw_ops.Empty(shape=[min(rest, 2**21)], dtype=tf.uint8))
start = [v.numpy() for v in variables(model, optimizer)]
def restore():
    for variable, value in zip(variables(model, optimizer), start):
        variable.assign(value)
needed = transient_bytes(update, large), transient_bytes(update, small)
assert needed[0] > 2.5 * needed[1], needed
restore()
update(small)
expected = [v.numpy() for v in model.variables]
restore()
take_all_but((needed[0] + needed[1]) // 2)
for _ in range(2):
    try:
        update(large)
    except tf.errors.ResourceExhaustedError:
        pass
    else:
        raise AssertionError("memory did not run out")
    # One micro-step is in the sums, and nothing else has changed.
    assert optimizer.step.numpy() == 1
    assert any(total.numpy().any() for total in optimizer.sums.totals)
    assert not optimizer.half_updated.numpy() and optimizer.iterations.numpy() == 0
    optimizer.drop()
    for variable, value in zip(variables(model, optimizer), start):
        np.testing.assert_array_equal(variable.numpy(), value, variable.name)
update(small)
for variable, value in zip(model.variables, expected):
    np.testing.assert_allclose(variable.numpy(), value, rtol=0, atol=1e-6)
"""

IN_PLACE = """
model, optimizer, update = build(384, 1)
parameters = sum(v.numpy().nbytes for v in model.trainable_variables)
transient = transient_bytes(update, window(8, 0, 1, 2))
# The gradients; a second copy of the sums, weights or moments would be at least as large.
assert transient < 1.5 * parameters, (transient, parameters)
resting = device_memory.used_bytes()
assert resting < 4.5 * parameters, (resting, parameters)
"""

RECOMPUTATION = """
peaks = {}
for recompute in ("none", "layer"):
    update = build(64, 3, recompute)[-1]
    peaks[recompute] = transient_bytes(update, window(64, 0, 32, 64))
assert peaks["layer"] < 0.7 * peaks["none"], peaks
"""


def test_out_of_memory_in_a_compiled_micro_step_does_not_change_the_update() -> None:
    output(COMMON + OUT_OF_MEMORY, env=FAST)


def test_compiled_updates_write_variables_in_place() -> None:
    """The peak contains no second copy of the weights, the moments or the sums."""
    output(COMMON + IN_PLACE, env=FAST)


def test_compiled_recomputation_saves_memory() -> None:
    """XLA does not merge the second forward pass with the first."""
    output(COMMON + RECOMPUTATION, env=FAST)
