"""Measured memory of an update, in processes with a memory limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from forked import output
from small import CLASSIFICATION, ONE_LAYER
from test_planner import job
from test_step import CONFIG

from bertaccum.accumulation.window import WindowOptimizer
from bertaccum.bert.model_source import ModelSource
from bertaccum.data.token_store import TokenStore
from bertaccum.data.windows import make_window
from bertaccum.errors import RunError
from bertaccum.planning.measurement import MeasurementProcess, MeasurementRequest
from bertaccum.system.progress import silent
from bertaccum.training import step_measurement
from bertaccum.training.recipe import build_model, make_optimizer
from bertaccum.training.step import make_update

# With many layers and few words, no variable is a large part of the model.
WIDE = {
    "hidden_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 768,
    "vocab_size": 500,
}
KINDS: dict[str, dict[str, Any]] = {
    "float32": {},
    "loss scale": {"precision": "mixed_float16"},
    "bfloat16 accumulators": {"accumulator_dtype": "bfloat16"},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_update_does_not_copy_the_gradients(kind: str) -> None:
    with MeasurementProcess(silent, {}) as worker:
        built = worker.build(job(encoder=WIDE, config=KINDS[kind]))
        parameters = built["static_bytes"]["parameters"]
        accumulators = built["static_bytes"]["accumulators"]
        worker.run(MeasurementRequest([[(1, 8)]], "none"))
        measured = worker.run(MeasurementRequest([[(1, 8)]], "none"))
        transient = measured.peak_bytes - measured.resting_bytes
        # Half precision keeps no copies of the kernels either: they are cast layer by layer.
        assert transient < 0.5 * parameters, transient / parameters
        if kind == "float32":
            # A loop over 12 micro-steps takes no more memory than 12 windows of one. The timing of
            # two threads moves each peak by up to 3%, so the largest of 12 peaks is compared.
            one, many = (
                MeasurementRequest([[(1, 64)] * 4], "none"),
                MeasurementRequest([[(1, 64)] * 4] * 12, "none"),
            )
            ones = [worker.run(one).peak_bytes for _ in range(12)]
            looped = min(worker.run(many).peak_bytes for _ in range(3))
            assert looped < 1.02 * max(ones)
            assert accumulators == parameters
        if kind == "bfloat16 accumulators":
            assert accumulators == parameters / 2


@pytest.mark.slow
def test_update_of_one_micro_step_needs_no_accumulators() -> None:
    with MeasurementProcess(silent, {}) as worker:
        built = worker.build(job(encoder=WIDE, accumulation_steps=1))
        assert built["static_bytes"]["accumulators"] == 0
        measured = worker.run(MeasurementRequest([[(1, 8)]], "none", accumulate=False))
        assert measured.resting_bytes < 3.5 * built["static_bytes"]["parameters"]
        assert worker.run(MeasurementRequest([[(1, 64)] * 4], "none", accumulate=False)) is not None


def test_embedding_gradients_stay_sparse_until_accumulated(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}
    accumulate = WindowOptimizer.accumulate

    def spy(self: WindowOptimizer, pairs: Any, weight: Any) -> None:
        seen.update({v.name: g for g, v in pairs})
        accumulate(self, pairs, weight)

    monkeypatch.setattr(WindowOptimizer, "accumulate", spy)
    model = build_model(CONFIG, ModelSource("tiny", ONE_LAYER, None, None), outputs=2)
    make_update(CLASSIFICATION, model, make_optimizer(CONFIG, 8, 4), 0, True)(
        make_window(store, np.arange(8), 2)
    )
    (words,) = [g for name, g in seen.items() if "word_embeddings" in name]
    assert isinstance(words, tf.IndexedSlices)


RESTORING = """
import itertools, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from pathlib import Path
from bertaccum.distribution import device_memory
device_memory.limit_memory(200 * 2**20)
import tensorflow as tf, tf_keras
from bertaccum.options.commands import TrainConfig
from bertaccum.planning.plan import make_plan
from bertaccum.training.checkpoints import Checkpoints, Position, state_of
from bertaccum.training.recipe import make_optimizer
from bertaccum.runs.folder import RunFolder
model = tf_keras.Sequential([tf_keras.layers.Embedding(40_000, 128), tf_keras.layers.Dense(2)])
model.build([None, 8])
optimizer = make_optimizer(TrainConfig(), 8, 4)
optimizer.build(model.trainable_variables)
states = Checkpoints(model, optimizer, RunFolder(Path(sys.argv[1])), 1)
states.save(Position(""), make_plan(4, 1, cut="cost"))
def largest():
    # Sizes grow up to the first failure, because each failed allocation waits.
    fitting = lambda mib: device_memory._can_allocate(mib * 2**20)
    return list(itertools.takewhile(fitting, itertools.count(1)))[-1]
before, used = largest(), device_memory.used_bytes()
states.restore(state_of(Path(sys.argv[1]) / "checkpoints", 0))
assert device_memory.used_bytes() - used < 2**20, device_memory.used_bytes() - used
@tf.function
def read():
    return tf.reduce_sum(tf.gather(model.weights[0].read_value(), [0]))
read()
device_memory.reset_peak_memory()
read()
used = device_memory.used_bytes()
print(before, device_memory.peak_memory_bytes() - used, device_memory._can_allocate(before * 2**20))
"""


@pytest.mark.slow
def test_restoring_does_not_fragment_memory(tmp_path: Path) -> None:
    """Free memory stays in one block, and reading restored weights makes no copy of them."""
    (tmp_path / "checkpoints").mkdir()
    before, copied, still_in_one_piece = output(RESTORING, tmp_path).split()
    assert int(before) > 60
    assert int(copied) < 2**20
    assert still_in_one_piece == "True"


def test_full_disk_is_not_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow raises the same error for both. The planner would reject the candidate."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def written(message: str) -> None:
        error = tf.errors.ResourceExhaustedError(None, None, message)
        with mock.patch.object(step_measurement, "write_state", side_effect=error):
            step_measurement.write_scratch_state(mock.Mock(), mock.Mock())

    with pytest.raises(
        RunError, match=rf"^{tmp_path}: cannot be written \(No space left on device"
    ):
        written(f"{tmp_path}/state.data; No space left on device")
    with pytest.raises(tf.errors.ResourceExhaustedError):
        written("OOM when allocating tensor")
