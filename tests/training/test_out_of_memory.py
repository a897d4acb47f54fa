"""Running out of memory: the run continues with smaller micro-batches and the same updates.

Python's MemoryError, which TensorFlow turns into ResourceExhaustedError, simulates a failed
allocation at any place. The last test runs out of real memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import forked
import numpy as np
import pytest
import tensorflow as tf
from forked import PROGRAM
from scripted import Failing, under
from small import write_small_task

from bertaccum.data.windows import Window
from bertaccum.errors import RunError
from bertaccum.inference.trained_model import load_trained
from bertaccum.options.commands import TrainConfig
from bertaccum.planning import cost
from bertaccum.runs.folder import RunFolder
from bertaccum.system.progress import silent
from bertaccum.training import agreed_plan
from bertaccum.training.events import OutOfMemory
from bertaccum.training.train import train
from bertaccum.training.updater import Updater

UPDATES = 3
# Trains two runs; memory runs out in the tenth forward pass of the second one.
SECOND_FAILS = """
import json, sys
from scripted import Failing, under
from bertaccum.options.commands import TrainConfig
from bertaccum.system.progress import silent
from bertaccum.training.train import train
whole, cut = (TrainConfig(**options) for options in json.loads(sys.argv[1]))
list(train(whole, silent))
under(Failing({10}, training=True), train(cut, silent))
"""


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a small data set, and the dimensions of a small encoder."""
    return write_small_task(tmp_path_factory.mktemp("data") / "reviews", train=24, dev=24).parent


def configured(reviews: Path, out: Path, micro_batch: int, **options: object) -> TrainConfig:
    """Return the configuration of three updates of a small encoder with windows of eight."""
    values = {
        "data": str(reviews),
        "out": str(out),
        "bert_config": str(reviews / "bert_config.json"),
        "init_checkpoint": "none",
        "max_seq_length": 16,
        "target_batch": 8,
        "cut": "count",
        "dropout": 0.0,
        "learning_rate": 1e-3,
        "max_updates": UPDATES,
    }
    return TrainConfig(micro_batch=micro_batch, **(values | options))


@pytest.fixture
def config(reviews: Path, tmp_path: Path) -> Callable[..., TrainConfig]:
    """Return a function that configures runs in the test's own folder."""
    return lambda size, name, **options: configured(reviews, tmp_path / name, size, **options)


def run(
    config: TrainConfig, change: Any = None
) -> tuple[list[np.ndarray], list[OutOfMemory], dict]:
    """Return the final weights, the out-of-memory events and the summary."""
    events = under(change or contextlib.nullcontext(), train(config, silent))
    shrunk = [event for event in events if isinstance(event, OutOfMemory)]
    return weights_of(Path(config.out)), shrunk, events[-1].summary


def weights_of(out: Path) -> list[np.ndarray]:
    return load_trained(out).model.get_weights()


def last_scores(out: Path) -> dict[str, Any]:
    return json.loads(RunFolder(out).eval.read_text().splitlines()[-1])


@pytest.fixture(scope="module")
def whole(reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that never runs out of memory."""
    out = tmp_path_factory.mktemp("whole") / "run"
    _, none, _ = run(configured(reviews, out, 8))
    assert none == []
    return out


def assert_equal(mine: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_out_of_memory_does_not_change_the_updates(
    config: Callable[..., TrainConfig], whole: Path
) -> None:
    # Memory runs out at the last micro-step of the second window.
    weights, events, summary = run(config(3, "cut"), Failing({6}, training=True))
    assert_equal(weights, weights_of(whole))
    assert events == [OutOfMemory(2, 3, 1, "none")]
    assert (summary["out_of_memory"], summary["micro_batch"]) == (1, 1)


def test_out_of_memory_while_weights_change_ends_the_run(
    config: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Updater._make_update

    def failing(updater: Updater) -> Callable[[list[Window]], dict[str, Any]]:
        update = make(updater)

        def second_fails(windows: list[Window]) -> dict[str, Any]:
            if updater.optimizer.iterations == 1:
                updater.optimizer.half_updated.assign(True)
                raise tf.errors.ResourceExhaustedError(None, None, "no memory")
            return update(windows)

        return second_fails

    monkeypatch.setattr(Updater, "_make_update", failing)
    with pytest.raises(RunError, match="out of memory while update 2 was being applied"):
        list(train(config(4, "run"), silent))


@pytest.mark.slow
def test_micro_batch_shrinks_to_one_example_with_recomputation(
    config: Callable[..., TrainConfig], whole: Path
) -> None:
    """Memory runs out in the second window, which is a single micro-batch at first."""
    written = config(8, "cut")
    weights, events, summary = run(written, Failing({2, 3, 4, 5}, training=True))
    assert_equal(weights, weights_of(whole))
    assert {event.update for event in events} == {2}
    assert [event.micro_batch for event in events] == [4, 2, 1, 1]
    assert [event.recompute for event in events] == ["none", "none", "none", "layer"]
    assert summary["recompute"] == "layer"
    folder = RunFolder(Path(written.out))
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [line.get("out_of_memory") for line in lines] == [None, 8, 4, 2, 1, None, None]
    plan = json.loads(folder.plan.read_text())
    assert (plan["micro_batch"], plan["recompute"]) == (1, "layer")
    # Later runs use this limit.
    assert plan["learned_limits"] == {"none": 1}


@pytest.mark.slow
def test_state_moves_to_the_host_if_one_example_does_not_fit(
    config: Callable[..., TrainConfig],
) -> None:
    options = {"dropout": 0.1, "recompute": "layer", "eval_every": 1}
    expected, _, _ = run(config(1, "whole", **options))
    # Memory runs out twice in the second window, in which some gradients were already added.
    weights, events, summary = run(config(1, "cut", **options), Failing({12, 16}, training=True))
    for one, other in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert [(event.update, event.offload) for event in events] == [(2, "moments"), (2, "all")]
    assert summary["offload"] == "all"


@pytest.mark.slow
def test_moments_of_all_replicas_move_to_the_host(config: Callable[..., TrainConfig]) -> None:
    """Memory runs out in the second window, when the moments of the replicas are not zero."""
    options = {"recompute": "layer", "replicas": 2}
    both = [config(1, name, **options) for name in ("whole", "cut")]
    forked.output(SECOND_FAILS, json.dumps([vars(one) for one in both]))
    expected, found = (load_trained(Path(one.out)).model.get_weights() for one in both)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    summary = json.loads(RunFolder(Path(both[1].out)).summary.read_text())
    assert (summary["offload"], summary["out_of_memory"]) == ("moments", 1)


def test_recomputation_needs_no_more_host_memory(
    config: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The accumulators and moments that are on the host since the start fill its memory."""
    available = iter([2**40])
    monkeypatch.setattr(cost, "available_bytes", lambda: next(available, 0))
    options = {"offload": "all", "max_updates": 1}
    _, events, _ = run(config(1, "run", **options), Failing({2}, training=True))
    assert events == [OutOfMemory(1, 1, 1, "layer", "all")]


@pytest.mark.slow
def test_error_if_one_example_does_not_fit(config: Callable[..., TrainConfig]) -> None:
    reason = r"one example at a time \(`recompute` layer, `offload` all\); lower `max_seq"
    with pytest.raises(RunError, match=reason):
        run(config(1, "cut", recompute="layer"), Failing(range(1, 100), training=True))


@pytest.mark.slow
def test_evaluation_continues_with_smaller_batches(
    config: Callable[..., TrainConfig], whole: Path
) -> None:
    change, written = Failing({1, 2}, training=False), config(4, "cut", eval_every=1)
    _, events, _ = run(written, change)
    # The 24 examples are one batch, then two, then four; the other two evaluations use four.
    assert change.seen == 1 + 1 + 4 + 4 + 4
    assert events == []
    mine, theirs = last_scores(Path(written.out)), last_scores(whole)
    assert (mine["update"], mine["accuracy"]) == (theirs["update"], theirs["accuracy"])
    assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-6)
    never = config(8, "never", max_updates=0)
    with pytest.raises(RunError, match="one example at a time"):
        run(never, Failing(range(1, 100), training=False))


def test_other_errors_are_not_treated_as_out_of_memory(config: Callable[..., TrainConfig]) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(config(4, "cut"), Failing({2}, training=True, error=ValueError))


@pytest.mark.slow
def test_real_out_of_memory_does_not_change_the_updates(reviews: Path, tmp_path: Path) -> None:
    """Train BERT-Tiny on windows of 128 x 128 tokens, with plenty of memory and with little."""
    data = shutil.copytree(reviews, tmp_path / "long")
    rows = [f"{i % 2}\t{'very ' * 200}{('bad', 'good')[i % 2]}\n" for i in range(256)]
    (data / "train.tsv").write_text("label\ttext\n" + "".join(rows))
    summaries = []
    for limit in ("1500MiB", "180MiB"):
        out = tmp_path / f"real-{limit}"
        command = ["train", "--data", str(data)]
        command += ["--out", str(out), "--memory-limit", limit, "--target-batch", "128"]
        command += ["--micro-batch", "128", "--model", "bert-tiny", "--init-checkpoint", "none"]
        command += ["--dropout", "0", "--max-updates", "2", "--learning-rate", "1e-3", "--json"]
        done = forked.run(PROGRAM, *command)
        assert done.returncode == 0, done.stderr
        summaries.append(json.loads(done.stdout))
        again = "out of memory with micro-batches of 128; running the update again in"
        assert (again in done.stderr) == (limit != "1500MiB")
    plenty, little = summaries
    assert (plenty["out_of_memory"], plenty["micro_batch"]) == (0, 128)
    assert little["out_of_memory"] > 0 and little["micro_batch"] < 128
    assert little["peak_memory_bytes"] <= 180 * 2**20 < plenty["peak_memory_bytes"]
    assert little["final_loss"] == pytest.approx(plenty["final_loss"], abs=1e-6)


@pytest.mark.parametrize("micro_batch", [8, "auto"])
def test_replicas_remember_memory_limits_for_later_plans(
    config: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch, micro_batch: Any
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(
        agreed_plan, "find_fastest_plan", lambda request, _: made.append(request) or Mock()
    )
    inputs: Any = None
    request, _ = agreed_plan.find_plan(config(micro_batch, "run"), inputs, 2, 1, silent)
    assert (request.devices, request.shared, request.config.target_batch) == (2, True, 4)
    assert made == [request] * (micro_batch == "auto")


def test_shares_may_be_smaller_than_the_number_of_replicas(
    config: Callable[..., TrainConfig],
) -> None:
    inputs: Any = None
    given = dataclasses.replace(config(2, "run"), target_batch=8, replicas=4)
    request, planned = agreed_plan.find_plan(given, inputs, 4, 1, silent)
    assert request.config.target_batch == 2
    assert planned.require_plan().replicas == 4
