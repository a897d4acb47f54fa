"""Offloading to host memory does not change the updates."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from forked import output
from resuming import killed_copy
from small import CLASSIFICATION, ONE_LAYER, write_small_task
from test_step import CONFIG

from bertaccum import api
from bertaccum.accumulation.offload import host_memory
from bertaccum.bert.model_source import ModelSource
from bertaccum.data.token_store import TokenStore
from bertaccum.data.windows import make_window, window_rows
from bertaccum.errors import RunError
from bertaccum.options.commands import TrainConfig
from bertaccum.options.offload_rungs import OFFLOAD
from bertaccum.planning import cost
from bertaccum.training.checkpoints import saved_states
from bertaccum.training.recipe import build_model, make_optimizer, offload
from bertaccum.training.step import make_update

UPDATES = 10


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Update the embeddings in several pieces, and compute in several threads."""
    monkeypatch.setattr(host_memory, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(host_memory, "_PART", 100)


def train(
    store: TokenStore,
    what: str,
    micro_batch: int = 8,
    moved_after: int = 0,
    spoiled: int | None = None,
    **options: Any,
) -> list[np.ndarray]:
    """Return gradient norm, weights, learning rate and loss scale after ten updates.

    Gradients are not clipped unless `options` has `clip_norm`: the norm is summed in float64 on the
    host, so clipping may change the last bit.

    Args:
      store: Examples to train on.
      what: What is offloaded.
      micro_batch: Number of examples in a micro-batch.
      moved_after: Number of updates before it is offloaded.
      spoiled: Update in which some weights are infinite, so that it is skipped.
      **options: Options that differ from `CONFIG`.
    """
    config = TrainConfig(**{**vars(CONFIG), "dropout": 0.1, "clip_norm": 1e6, **options})
    model = build_model(config, ModelSource("tiny", ONE_LAYER, None, None), 2)
    optimizer = make_optimizer(config, UPDATES, 2)
    weight = model.get_layer("sentence_prediction").trainable_weights[-1]
    for number in range(UPDATES):
        if number == moved_after:
            offload(optimizer, what, None)
        if number in (0, moved_after):
            update = make_update(CLASSIFICATION, model, optimizer, 0, True)
        _, rows = window_rows(number, len(store), config.target_batch, config.seed)
        kept = weight.numpy()
        if number == spoiled:
            weight.assign(tf.fill(weight.shape, np.inf))
        result = update(make_window(store, rows, micro_batch))
        if number == spoiled:
            assert not result["applied"]
            weight.assign(kept)
    state = [optimizer.gradient_norm, *model.trainable_variables, optimizer.skipped_windows]
    state += [v for v in optimizer.inner.variables if v.shape.rank == 0]
    return [variable.numpy() for variable in state]


def assert_identical(mine: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    """Check that two results of `train` are the same, except for the rounding of the norm."""
    np.testing.assert_allclose(mine[0], theirs[0], rtol=1e-6)
    for one, other in zip(mine[1:], theirs[1:], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def plain(store: TokenStore) -> list[np.ndarray]:
    """Return the result of training with all state on the device."""
    return train(store, "none")


@pytest.mark.parametrize(("what", "dtype"), [("moments", "float32"), ("all", "bfloat16")])
def test_updates_are_identical(
    store: TokenStore, plain: list[np.ndarray], what: str, dtype: str
) -> None:
    """On the host, accumulators in half precision become float32."""
    assert_identical(train(store, what, accumulator_dtype=dtype), plain)


@pytest.mark.slow
def test_updates_of_one_micro_step_are_identical(store: TokenStore) -> None:
    assert_identical(train(store, OFFLOAD[-1], 32), train(store, "none", 32))


def test_clipped_updates_differ_only_by_rounding(store: TokenStore) -> None:
    clipped = [train(store, what, clip_norm=0.2) for what in ("all", "none")]
    for one, other in zip(*clipped, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


# Each precision and rung, and a state that moves in the middle of the run, before or after the
# skipped window; also with a loss scale.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "what", "after"),
    [("float32", "moments", 0), ("mixed_float16", "all", 2), ("mixed_bfloat16", "all", 5)],
)
def test_updates_are_identical_with_a_skipped_window(
    store: TokenStore, precision: str, what: str, after: int
) -> None:
    options = {"precision": precision, "spoiled": 3, "recompute": "layer"}
    found = train(store, what, moved_after=after, **options)
    assert_identical(found, train(store, "none", **options))


def trained(folder: Path, name: str, **options: Any) -> dict[str, Any]:
    """Return the arrays of the last checkpoint of a run of four updates."""
    values = {
        "data": str(folder / "reviews"),
        "bert_config": str(folder / "reviews/bert_config.json"),
    }
    values |= {"init_checkpoint": "none", "out": str(folder / name), "target_batch": 8}
    values |= {"micro_batch": 4, "max_updates": 4, "max_seq_length": 16, "save_every": "1"}
    values |= {"clip_norm": 1e6, "noise_scale": "none"}
    api.train(**(values | options))
    return arrays(folder / name)


def arrays(run: Path) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(saved_states(run / "checkpoints")[-1] / "state"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_resumed_run_may_offload_something_else(tmp_path: Path) -> None:
    write_small_task(tmp_path / "reviews", train=24, dev=8)
    whole = trained(tmp_path, "whole", keep=4, eval_every=4)
    resumed = killed_copy(tmp_path / "whole", tmp_path / "resumed", 1)
    for updates, what in enumerate(("all", "moments", "none"), 2):
        api.train(resume=str(resumed), offload=what, max_updates=updates)
    found = arrays(resumed)
    assert whole.keys() == found.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(found[name], value)


def test_offload_folder_contains_the_numbers_and_is_empty_afterwards(
    store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved: list[int] = []
    reserve = os.posix_fallocate
    monkeypatch.setattr(
        os, "posix_fallocate", lambda file, start, n: reserved.append(n) or reserve(file, start, n)
    )
    optimizer = make_optimizer(TrainConfig(offload="all", offload_folder=str(tmp_path)), 1, 2)
    variable = tf.Variable(tf.ones([4, 3]))
    optimizer.build([variable])
    assert reserved == [48] * 3  # Two moments and an accumulator.
    optimizer.accumulate([(tf.ones([4, 3]), variable)], 1.0)
    optimizer.apply()
    assert float(variable[0, 0]) != 1.0
    assert list(tmp_path.iterdir()) == []


def test_offloading_works_without_functions_of_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS: no reserved files, and no set of usable cores."""
    for name in ("posix_fallocate", "sched_getaffinity"):
        monkeypatch.delattr(os, name)
    host_memory._threads.cache_clear()
    optimizer = make_optimizer(TrainConfig(offload="all", offload_folder=str(tmp_path)), 1, 2)
    variable = tf.Variable(tf.ones([host_memory._PART + 1]))
    optimizer.build([variable])
    optimizer.accumulate([(tf.ones_like(variable), variable)], 1.0)
    optimizer.apply()
    assert 0.5 < float(variable[0]) == float(variable[-1]) < 1.0


def test_full_disk_is_an_error_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_small_task(tmp_path / "reviews", train=24, dev=8)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match="reviews: cannot be used for offloading \\(No space"):
        trained(tmp_path, "full", offload="all", offload_folder=str(tmp_path / "reviews"))
    with pytest.raises(RunError, match="missing: cannot be used for offloading"):
        trained(tmp_path, "none", offload="moments", offload_folder=str(tmp_path / "missing"))


def test_too_little_host_memory_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_small_task(tmp_path / "reviews", train=24, dev=8)
    monkeypatch.setattr(cost, "available_bytes", lambda: 1000)
    reason = r"`offload` all needs .* of this machine's memory, and .* is free; free memory, or"
    with pytest.raises(RunError, match=reason):
        trained(tmp_path, "short", offload="all")
    trained(tmp_path, "folder", offload="all", offload_folder=str(tmp_path), max_updates=1)


def test_only_tensors_that_move_need_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight needs 12 bytes; `available_bytes` no longer contains the 8 of its moments."""
    monkeypatch.setattr(cost, "available_bytes", lambda: 399 * 2**20)
    cost.check_host_memory("all", "all", 100 * 2**20, None)
    for before, more in (("none", "1,200 MiB"), ("moments", "400 MiB more")):
        with pytest.raises(RunError, match=f"`offload` all needs {more} of this machine's memory"):
            cost.check_host_memory("all", before, 100 * 2**20, None)


SLOW_HOST = """
import time
import numpy as np
from bertaccum.distribution.device_memory import limit_memory, peak_memory_bytes, reset_peak_memory
limit_memory(1000 * 2**20)
import tensorflow as tf
from bertaccum.accumulation.offload.host_memory import HostArray
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.model_source import ModelSource
from bertaccum.options.commands import TrainConfig
from bertaccum.data.windows import Window
from bertaccum.tasks.classification import Classification
from bertaccum.tasks.labels import Labels
from bertaccum.training.recipe import build_model
from bertaccum.training.recipe import make_optimizer, offload
from bertaccum.training.step import make_update
HostArray._add = lambda array, gradient: time.sleep(0.02)
encoder = EncoderConfig(
    hidden_size=256, num_hidden_layers=6, num_attention_heads=4, intermediate_size=1024,
    vocab_size=50, max_position_embeddings=32
)
model = build_model(TrainConfig(recompute="layer"), ModelSource("deep", encoder, None, None), 2)
optimizer = make_optimizer(TrainConfig(), 10, 2)
offload(optimizer, "all", None)
update = make_update(Classification(Labels.numbered(2)), model, optimizer, 0, True)
window = Window(
    np.arange(16, dtype=np.int32), np.array([0, 8, 16]), np.zeros(2, np.int32),
    np.array([0, 1, 2], np.int32)
)
for _ in range(2):
    reset_peak_memory()
    update(window)
print(peak_memory_bytes() / sum(v.numpy().nbytes for v in model.variables))
"""


@pytest.mark.slow
def test_gradients_wait_for_a_slow_host() -> None:
    """At most two of six layers have gradients on the device while the host adds."""
    assert 1.0 < float(output(SLOW_HOST)) < 1.6


MEMORY = """
import dataclasses, json
import numpy as np
from bertaccum.distribution.device_memory import limit_memory, peak_memory_bytes, reset_peak_memory
limit_memory(1000 * 2**20)
import tensorflow as tf
from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.options.commands import TrainConfig
from bertaccum.data.windows import Window
from bertaccum.tasks.classification import Classification
from bertaccum.tasks.labels import Labels
from bertaccum.training.recipe import build_model
from bertaccum.training.recipe import make_optimizer, offload
from bertaccum.training.step import make_update
encoder = dataclasses.replace(PRESET_CONFIGS["bert-small"], num_hidden_layers=2)
config = TrainConfig(recompute="layer")
model = build_model(config, ModelSource("two layers", encoder, None, None), 2)
optimizer = make_optimizer(config, 10, 2)
window = Window(
    np.arange(64, dtype=np.int32), np.array([0, 32, 64]), np.zeros(2, np.int32),
    np.array([0, 1, 2], np.int32)
)
peaks = []
for what in ("none", "moments", "all"):
    offload(optimizer, what, None)
    update = make_update(Classification(Labels.numbered(2)), model, optimizer, 0, True)
    for _ in range(2):
        reset_peak_memory()
        update(window)
    peaks.append(peak_memory_bytes() / sum(v.numpy().nbytes for v in model.variables))
print(json.dumps(peaks))
"""


@pytest.mark.slow
def test_device_holds_only_what_is_not_offloaded() -> None:
    """The unit is the memory of the weights; most of them are embeddings."""
    none, moments, everything = json.loads(output(MEMORY))
    assert 4.0 < none < 5.2
    assert 2.0 < moments < 3.2
    assert 1.0 < everything < 1.6
