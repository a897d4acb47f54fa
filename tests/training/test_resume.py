"""Resuming a run gives bit-identical results."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import hashlib
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf
from resuming import result
from scripted import ChangedLogits, CountedPasses, Failing, ScriptedScores, run_until, under
from small import Notes, flip_a_bit, write_small_task
from waiting import in_a_minute

from bertaccum import api
from bertaccum.cli.program import main
from bertaccum.errors import BertAccumError, ConfigError, InputError, RunError
from bertaccum.options.commands import TrainConfig
from bertaccum.options.fields import save_interval
from bertaccum.runs.folder import RunFolder
from bertaccum.runs.record import read_run_config, whole_lines
from bertaccum.system import atomic
from bertaccum.system.progress import silent
from bertaccum.system.stopping import Stopping
from bertaccum.tasks.classification import Classification
from bertaccum.tasks.model_files import EVALUATION, ModelFiles
from bertaccum.tasks.task import PLAIN, Decoding
from bertaccum.training import checkpoints, setup
from bertaccum.training import train as starting
from bertaccum.training.checkpoints import Position, best_evaluation, read_saved, saved_states
from bertaccum.training.compilation import Compilation
from bertaccum.training.events import Event, Finished, Started, Stopped, Updated
from bertaccum.training.resume import (
    changed_plan_options,
    check_logs,
    check_start,
    resolved_config,
    resumed_config,
    rounding_note,
)
from bertaccum.training.train import resume, train
from data_prep.tables.manifest import MANIFEST, TOOL

# With twenty examples, windows of eight and two epochs, the third and the sixth window are short.
EXAMPLES, UPDATES = 20, 6

Make = Callable[..., TrainConfig]


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a small data set, and the dimensions of a small encoder."""
    folder = tmp_path_factory.mktemp("data") / "reviews"
    write_small_task(folder, train=EXAMPLES, dev=10)
    return folder


def made(data: Path, out: Path, **options: object) -> TrainConfig:
    """Return the configuration of a run with dropout and six updates over two epochs."""
    values = {
        "data": str(data),
        "out": str(out),
        "bert_config": str(data / "bert_config.json"),
        "init_checkpoint": "none",
        "max_seq_length": 16,
        "target_batch": 8,
        "micro_batch": 3,
        "cut": "count",
        "epochs": 2.0,
        "eval_every": 2,
        "learning_rate": 1e-2,
        "save_every": "1",
    }
    return TrainConfig(**(values | options))


@pytest.fixture
def config(reviews: Path, tmp_path: Path) -> Make:
    """Return a function that configures runs in the test's own folder, with its own data."""
    data = tmp_path / "reviews"
    shutil.copytree(reviews, data)
    return lambda name, **options: made(data, tmp_path / name, **options)


@pytest.fixture(scope="module")
def finished(reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that was never interrupted; tests copy it."""
    out = tmp_path_factory.mktemp("finished") / "run"
    list(train(made(reviews, out), silent))
    return out


@pytest.fixture(scope="module")
def whole(finished: Path) -> dict[str, Any]:
    """Return the result of a run that was never interrupted."""
    return result(finished)


@pytest.fixture(scope="module")
def killed(reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that was killed before update 4 was saved; tests copy it."""
    out = tmp_path_factory.mktemp("killed") / "run"
    run_until(train(made(reviews, out, keep=1), silent), 4)
    return out


def stopped_after(config: TrainConfig, update: int) -> Event:
    """Train, ask the run to stop after an update, and return its last event."""
    stopping = Stopping()
    for event in train(config, silent, stopping):
        if isinstance(event, Updated) and event.update == update:
            stopping.requested = signal.SIGTERM
    return event


def request(stopping: Stopping) -> None:
    """Ask a run to stop, as the thread that listens to signals does."""
    stopping.requested = signal.SIGINT
    assert stopping._request is not None
    stopping._request()


@pytest.mark.slow
def test_resume_after_several_kills_gives_identical_result(config: Make) -> None:
    """In half precision; test_killed.py also kills runs in full precision several times."""
    options = {"precision": "mixed_float16", "accumulator_dtype": "bfloat16"}
    whole, killed = (config(name, **options) for name in ("whole", "killed"))
    list(train(whole, silent))
    run_until(train(killed, silent), 2)
    run_until(resume(Path(str(killed.out)), {}, silent), 3)
    *_, last = resume(Path(str(killed.out)), {}, silent)
    assert isinstance(last, Finished)
    assert last.summary["updates"] == UPDATES
    assert last.summary["examples"] == 2 * EXAMPLES
    assert result(killed.out) == result(whole.out)


def test_resume_after_a_kill_gives_identical_result_from_the_last_checkpoint_but_one(
    killed: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    """The run keeps one checkpoint, and the one before it."""
    run = shutil.copytree(killed, tmp_path / "run")
    (run / "checkpoints/.update-9-0123456789ab").mkdir()  # A checkpoint that was being written.
    states = saved_states(run / "checkpoints")
    assert [state.name for state in states] == ["update-2", "update-3"]
    shutil.rmtree(states[-1])
    *_, last = resume(run, {}, silent)
    assert isinstance(last, Finished)
    assert (last.summary["updates"], last.summary["examples"]) == (UPDATES, 2 * EXAMPLES)
    assert result(run) == whole


@pytest.mark.slow
def test_resume_after_stop_gives_identical_result(config: Make, whole: dict[str, Any]) -> None:
    stopped = config("stopped", save_every="100")
    # Update 4 begins before the consumer handles update 3 and asks the run to stop.
    last = stopped_after(stopped, 3)
    assert last == Stopped(4, signal.SIGTERM, Path(str(stopped.out)))
    *_, last = resume(Path(str(stopped.out)), {}, silent)
    assert isinstance(last, Finished)
    assert result(stopped.out) == whole


def test_stop_within_a_window_drops_that_window(config: Make, whole: dict[str, Any]) -> None:
    """The request arrives while TensorFlow computes the first micro-batch of the third window."""
    passes: list[int] = []
    stopping = Stopping()

    def counted() -> None:
        passes.append(1)
        if len(passes) == 7:
            request(stopping)

    stopped = config("stopped")
    *_, last = under(CountedPasses(counted), train(stopped, silent, stopping))
    assert len(passes) == 7
    assert last == Stopped(2, signal.SIGINT, Path(str(stopped.out)))
    list(resume(Path(str(stopped.out)), {}, silent))
    assert result(stopped.out) == whole


def test_window_of_a_single_micro_batch_is_finished_before_the_run_stops(
    config: Make, whole: dict[str, Any]
) -> None:
    stopped = config("cut", micro_batch=8, save_every="100")
    passes, stopping = itertools.count(1), Stopping()
    *_, last = under(
        CountedPasses(lambda: next(passes) == 3 and request(stopping)),
        train(stopped, silent, stopping),
    )
    assert last == Stopped(3, signal.SIGINT, Path(str(stopped.out)))
    mine, theirs = (one["metrics.jsonl"] for one in (result(stopped.out), whole))
    for own, other in zip(mine, theirs[:3], strict=True):
        assert own["loss"] == pytest.approx(other["loss"], abs=1e-5)


def test_run_that_stops_after_memory_ran_out_goes_on_with_less(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, stopping = itertools.count(1), Stopping()

    def failing() -> None:
        """Fail in the first micro-step of update 2, and ask for a stop when it runs again."""
        number = next(passes)
        if number == 4:
            raise MemoryError
        if number == 6:
            request(stopping)

    run_config = config("run", save_every="100")
    folder = RunFolder(Path(str(run_config.out)))
    with monkeypatch.context() as patched:
        values = {"memory_bytes": 2, "peak_memory_bytes": 1, "why": "it fits"}
        patched.setattr(Compilation, "record", lambda _: values)
        *_, last = under(CountedPasses(failing), train(run_config, silent, stopping))
    assert last == Stopped(1, signal.SIGINT, folder.path)
    plan = json.loads(folder.plan.read_text())
    assert plan["memory_bytes"] == 2 and "peak_memory_bytes" not in plan
    started, *_, last = resume(folder.path, {}, silent)
    assert started.why == plan["why"] == "micro-batches of 3 ran out of memory in update 2"
    assert (last.summary["micro_batch"], last.summary["out_of_memory"]) == (1, 1)
    kinds = [json.loads(line)["kind"] for line in folder.metrics.read_text().splitlines()]
    assert kinds == ["updated", "out_of_memory", *["updated"] * (UPDATES - 1)]


def test_logs_are_on_disk_before_a_checkpoint_and_saving_may_take_long(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping, calls = Stopping(), list[str]()
    for owner, name in ((RunFolder, "sync_logs"), (checkpoints.Checkpoints, "save")):
        true = getattr(owner, name)

        def noted(*given: Any, true: Any = true, name: str = name) -> Any:
            assert stopping._saving
            calls.append(name)
            return true(*given)

        monkeypatch.setattr(owner, name, noted)
    list(train(config("run", max_updates=2), silent, stopping))
    assert calls == ["sync_logs", "save"] * 2


def test_resume_changes_no_checkpoint(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")

    def files() -> dict[Path, tuple[int, int]]:
        found = {path: path.stat() for path in (run / "checkpoints").rglob("*")}
        return {path: (one.st_ino, one.st_mtime_ns) for path, one in found.items()}

    before = files()
    list(resume(run, {}, silent))
    assert before and files() == before


@pytest.mark.parametrize("name", ["position.json", "state.data-00000-of-00001"])
def test_damaged_checkpoint_of_the_best_model_is_not_loaded(
    killed: Path, tmp_path: Path, name: str
) -> None:
    run = shutil.copytree(killed, tmp_path / "run")
    shutil.rmtree(run / "best")
    flip_a_bit(run / "checkpoints/update-2" / name)
    before = files_of(run)
    with pytest.raises(InputError, match=r"update-2"):
        list(resume(run, {}, silent))
    assert files_of(run) == before


@pytest.mark.parametrize(("deterministic", "expected"), [(None, 1), (True, 1), (False, 0)])
def test_runs_on_a_cpu_are_deterministic_by_default(
    config: Make, monkeypatch: pytest.MonkeyPatch, deterministic: bool | None, expected: int
) -> None:
    enable = Mock()
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", enable)
    monkeypatch.setattr(setup, "build_model", Mock(side_effect=InterruptedError))
    with pytest.raises(InterruptedError):
        list(train(config("run", deterministic=deterministic), silent))
    assert enable.call_count == expected


@pytest.mark.slow
def test_checkpoint_with_a_score_that_is_not_a_number_can_be_resumed(config: Make) -> None:
    """For example, the average precision if no label occurs in dev.tsv."""
    run_config = config("run", best_by="macro_f1")
    with ScriptedScores(macro_f1=[math.nan] * 9):
        run_until(train(run_config, silent), 4)
        *_, last = resume(Path(str(run_config.out)), {}, silent)
    assert (last.summary["best_update"], last.summary["updates"]) == (UPDATES, UPDATES)


@pytest.mark.slow
def test_resume_with_more_updates_ignores_the_final_evaluation(config: Make) -> None:
    """The short run's final evaluation is its best; an uninterrupted long run never makes it."""
    whole = config("whole")
    *_, last = under(ScriptedScores(accuracy=[0.9, 0.5, 0.5]), train(whole, silent))
    assert last.summary["best_update"] == 2
    for updates, before in ((3, [0.9, 0.95]), (0, [0.95, 0.9])):
        short = config(f"short-{updates}", max_updates=updates, save_every="100")
        scores = ScriptedScores(accuracy=[*before, 0.5, 0.5])
        *_, last = under(scores, train(short, silent))
        assert last.summary["best_update"] == updates
        *_, last = under(scores, resume(Path(str(short.out)), {"max_updates": UPDATES}, silent))
        assert last.summary["best_update"] == 2
        assert result(short.out) == result(whole.out)
        list(resume(Path(str(short.out)), {}, silent))


def test_evaluation_of_update_0_is_not_kept(tmp_path: Path) -> None:
    """A run with `max_updates` 0 makes it; no evaluation of update 0 is scheduled."""
    run = RunFolder(tmp_path)
    for update in range(5):
        line: dict[str, Any] = {"update": update, "kind": "evaluated"}
        run.append(run.eval, line)
        if update:
            run.append(run.metrics, line | {"kind": "updated"})
    check_logs(run, 4, 4, 1)
    for last, kept in ((3, [1, 2, 3]), (0, [])):
        run.rewind(last, last)
        for log in (run.eval, run.metrics):
            assert [line["update"] for line in whole_lines(log)] == kept


def files_of(run: Path) -> dict[str, bytes]:
    """Return the contents of a run's files, apart from its lock."""
    files = (path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def test_results_without_a_checkpoint_are_kept(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    removed = {
        "best, summary.json, metrics.jsonl, eval.jsonl": [],
        "metrics.jsonl, eval.jsonl": ["best", "summary.json"],
        "metrics.jsonl": ["best", "summary.json", "eval.jsonl"],
    }
    for path in (run / "checkpoints").iterdir():
        shutil.rmtree(path)
    for left, parts in removed.items():
        for part in parts:
            if (run / part).exists():
                (run / part).rename(run.parent / part)
        before = files_of(run)
        message = f"run: has no checkpoint in checkpoints/ to resume from, but has {left}, which.*"
        message += "restore checkpoints/, or start a new run with another `out`"
        message += " and `init_checkpoint` .*run for its" if "best" in left else "$"
        with pytest.raises(InputError, match=message):
            list(resume(run, {}, silent))
        assert files_of(run) == before
    (run / "checkpoints").rmdir()
    with pytest.raises(InputError, match="has no checkpoint"):
        list(resume(run, {}, silent))
    (run / "checkpoints").symlink_to("/disk/that/is/not/mounted")
    with pytest.raises(InputError, match="checkpoints: is a link to /disk/that/is/not/mounted"):
        list(resume(run, {}, silent))
    assert files_of(run) == before


@pytest.mark.parametrize("eval_every", [2, 4])
def test_best_model_that_a_resumed_run_does_not_know_is_set_aside(
    config: Make, eval_every: int
) -> None:
    """The evaluation after the last update of a short run is not part of a longer run."""
    short = config("short", max_updates=3, eval_every=eval_every)
    run, scores = Path(str(short.out)), ScriptedScores(accuracy=[0.9, 0.95])
    *_, last = under(scores, train(short, silent))
    assert last.summary["best_update"] == 3
    best = {path.name: path.read_bytes() for path in (run / "best").iterdir()}
    events = resume(run, {"max_updates": UPDATES}, silent)
    next(events)
    events.close()
    aside = run / "best-update-3"
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == best
    if eval_every == 2:
        assert json.loads((run / "best/evaluation.json").read_text())["update"] == 2
    else:
        assert not (run / "best").exists()


@pytest.mark.parametrize(("calibrate", "changed"), [(False, Decoding(2.0)), (True, PLAIN)])
def test_resumed_run_keeps_the_decoding_that_eval_changed(
    config: Make, monkeypatch: pytest.MonkeyPatch, calibrate: bool, changed: Decoding
) -> None:
    """The evaluation after the last update is repeated, because no checkpoint contains it."""
    monkeypatch.setattr(Classification, "fit_decoding", lambda *_: Decoding(3.0))
    finished = config("run", max_updates=0, calibrate=calibrate)
    list(train(finished, silent))
    run = Path(str(finished.out))
    files = ModelFiles.read(run / "best")
    assert files.decoding == (Decoding(3.0) if calibrate else PLAIN)
    dataclasses.replace(files, decoding=changed).write_decoding(run / "best")
    list(resume(run, {}, silent))
    assert ModelFiles.read(run / "best").decoding == changed
    assert not (run / "best-update-0").exists()


def test_start_over_before_the_first_checkpoint_keeps_the_best_model(
    config: Make, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create(config("run"), {})
    folder.best.mkdir()
    folder.append(folder.metrics, {"kind": "updated", "update": 1})
    check_start(folder)
    folder.rewind(0, 0)
    assert folder.best.is_dir() and folder.metrics.read_text() == ""


def test_failed_restore_leaves_logs_and_summary_unchanged(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RunError("does not fit in memory")

    run = shutil.copytree(finished, tmp_path / "run")
    before = files_of(run)
    monkeypatch.setattr(checkpoints.Checkpoints, "restore", fails)
    with pytest.raises(RunError, match="does not fit"):
        list(resume(run, {}, silent))
    assert files_of(run) == before


@pytest.mark.parametrize(
    "name", [".lock", "metrics.jsonl", "eval.jsonl", "checkpoints", "best", "tensorboard"]
)
def test_training_follows_no_link_in_a_run_folder(config: Make, tmp_path: Path, name: str) -> None:
    """A run folder may come from somebody else."""
    folder, victim = RunFolder(tmp_path / "run"), tmp_path / "victim"
    folder.create(config("run"), {})
    if "." in name:
        victim.write_text("mine\n")
    else:
        victim.mkdir()
    if name == "checkpoints":
        shutil.rmtree(folder.checkpoints)
    (folder.path / name).symlink_to(victim)
    with pytest.raises(InputError, match=rf"{name}: is a link to .*victim.*; replace it"):
        list(resume(folder.path, {}, silent))
    if "." in name:
        with pytest.raises(RunError, match="cannot be written"):
            folder.append(folder.path / name, {"update": 1})
        assert victim.read_text() == "mine\n"
    else:
        assert list(victim.iterdir()) == []


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "eval.jsonl"])
def test_training_writes_to_no_pipe_in_a_run_folder(
    config: Make, tmp_path: Path, name: str
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create(config("run"), {})
    os.mkfifo(folder.path / name)
    with in_a_minute(), pytest.raises(InputError, match=rf"{name}: is a pipe or device, but must"):
        list(resume(folder.path, {}, silent))


@pytest.mark.parametrize("name", ["position.json", "state.index"])
def test_checkpoint_with_a_pipe_is_damaged(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    if name != "position.json":
        (tmp_path / "position.json").write_text("{}")
    with in_a_minute(), pytest.raises(InputError, match=rf"is damaged .*{name}: is a pipe or"):
        read_saved(tmp_path, "mark")


def test_latest_is_the_last_run_that_went_on(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    latest, states = Path("runs/latest"), Path("runs/a/checkpoints")
    shutil.copytree(finished, "runs/a")
    latest.symlink_to("other")
    states.rename("away")
    with pytest.raises(InputError, match="no checkpoint"):
        list(resume(Path("runs/a"), {}, silent))
    assert latest.readlink() == Path("other")
    Path("away").rename(states)
    list(resume(Path("runs/a"), {}, silent))
    assert latest.readlink() == Path("a")


def test_resume_keeps_changed_options(
    killed: Path, reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second resumption is in another working directory, after a kill."""
    run = shutil.copytree(killed, tmp_path / "run")
    config = run / "config.yaml"
    monkeypatch.chdir(tmp_path)
    shutil.copytree(reviews, "moved")
    config.write_text(config.read_text().replace(f"data: {reviews}\n", "data: /gone\n"))
    with pytest.raises(InputError, match=r"/gone/\S+\.tsv: there is no such file"):
        api.train(resume=str(run))
    inputs = json.loads((run / "inputs.json").read_text())
    before = inputs["named"]
    (run / "inputs.json").write_text(json.dumps(inputs | {"named": [*before, "offload"]}))
    asked: dict[str, Any] = {"data": "moved", "max_updates": 5, "seed": 0, "offload": "auto"}
    events = api.training_events(resume=str(run), **asked)
    assert isinstance(next(events), Started)
    events.close()
    # The seed is the same, and the program chooses what to offload again.
    named = json.loads((run / "inputs.json").read_text())["named"]
    assert "data" in before and named == sorted([*before, "max_updates"])
    assert f"data: {tmp_path / 'moved'}\n" in config.read_text()
    monkeypatch.chdir("/")
    assert api.train(resume=str(run)).summary["updates"] == 5


def test_paths_of_a_run_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scratch").mkdir()
    options = TrainConfig(offload="all", offload_folder="scratch")
    assert resolved_config(options, "bert-tiny").offload_folder == str(tmp_path / "scratch")
    Path("none").mkdir()  # As a checkpoint, this name means random weights.
    options = resolved_config(TrainConfig(data="none", init_checkpoint="none"), "bert-tiny")
    assert (options.data, options.init_checkpoint) == (str(tmp_path / "none"), "none")


def test_runs_that_begin_in_the_same_second_have_two_folders(
    config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, options = RunFolder.new_path(None), dataclasses.replace(config("run"), out=None)
    for _ in range(2):
        RunFolder(path).create(options, {})
    assert len(list(Path("runs").glob("*/config.yaml"))) == 2


def test_rewinding_keeps_the_line_if_memory_ran_out_after_the_checkpoint(
    config: Make, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create(config("run"), {})
    lines: list[dict[str, Any]] = [
        {"kind": "updated", "update": 1},
        {"kind": "out_of_memory", "update": 2, "micro_batch": 4},
        {"kind": "out_of_memory", "update": 2, "micro_batch": 2},
        {"kind": "updated", "update": 2},
    ]
    for line in lines:
        folder.append(folder.metrics, line)
    folder.rewind(1, 0, 1)
    assert [json.loads(line) for line in folder.metrics.read_text().splitlines()] == lines[:2]


@pytest.mark.slow
def test_resume_accepts_options_that_do_not_affect_updates(
    killed: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    run = shutil.copytree(killed, tmp_path / "run")
    asked = {"micro_batch": 8, "keep": 1, "save_every": "10m", "seed": 0}
    *_, last = resume(run, asked, silent)
    assert last.summary["micro_batch"] == 8
    mine, theirs = result(run), whole
    assert len(saved_states(run / "checkpoints")) == 1
    for one, other in zip(mine["metrics.jsonl"], theirs["metrics.jsonl"], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-5)


def test_number_for_an_option_of_text_is_its_value_when_the_run_began(config: Make) -> None:
    began = config("numbers", thresholds=0.5)
    folder = RunFolder(Path(str(began.out)))
    folder.create(began, {})
    asked = {"thresholds": 0.5, "save_every": 7}
    assert resumed_config(folder.path, asked).save_every == "7"


def test_resume_refuses_changes_that_affect_updates(
    killed: Path, config: Make, tmp_path: Path
) -> None:
    run = shutil.copytree(killed, tmp_path / "run")
    before = result(run)
    with pytest.raises(ConfigError, match=r"`target_batch` to 4 \(was 8\), `seed` to 1 \(was 0\)"):
        list(resume(run, {"target_batch": 4, "seed": 1, "micro_batch": 2}, silent))
    with pytest.raises(ConfigError, match=r"`optimizer` to bert-adamw \(was adamw\)"):
        list(resume(run, {"optimizer": "bert-adamw"}, silent))
    with pytest.raises(ConfigError, match=r"both name the run folder; omit `out`"):
        list(resume(run, {"out": "elsewhere"}, silent))
    drawn = config("drawn", dropout_stream="micro-batch")
    RunFolder(Path(str(drawn.out))).create(drawn, {})
    with pytest.raises(
        ConfigError,
        match=r"`micro_batch` to 2 \(was 3\), `cut` to cost \(was count\), `offload` to all"
        r" \(was auto\), `replicas` to 2",
    ):
        asked = {"micro_batch": 2, "cut": "cost", "offload": "all", "replicas": 2}
        list(resume(Path(str(drawn.out)), asked, silent))
    data = Path(drawn.data)
    for name, text in (("train.tsv", "1\tbad food\n"), ("dev.tsv", "0\tgood\n")):
        whole = (data / name).read_text()
        (data / name).write_text(whole + text)
        with pytest.raises(InputError, match=rf"run: {name} changed since this run began"):
            list(resume(run, {"data": str(data)}, silent))
        (data / name).write_text(whole)
    vocabulary = (data / "vocab.txt").read_text()
    (data / "vocab.txt").write_text(vocabulary.replace("good", "tasty"))
    with pytest.raises(InputError, match=r"run: vocabulary changed since this run began"):
        list(resume(run, {"data": str(data)}, silent))
    assert result(run) == before


def test_dropout_masks_of_micro_batches_need_as_many_devices(config: Make) -> None:
    """Without options for devices, their number is that of the machine."""
    began = config("run", dropout_stream="micro-batch")
    folder = RunFolder(Path(str(began.out)))
    folder.create(began, {"mark": "m", "replicas": 2})
    with pytest.raises(ConfigError, match="began on 2 devices, and its dropout masks would differ"):
        list(resume(folder.path, {}, silent))
    other = dataclasses.replace(began, dropout_stream="example")
    assert changed_plan_options(folder, other, 1) == ["replicas"]


def test_micro_batch_with_its_own_dropout_masks_stays_as_memory_allowed(config: Make) -> None:
    """The user repeats the option with which the run began, before it ran out of memory."""
    began = config("run", dropout_stream="micro-batch", micro_batch=8, max_updates=2)
    under(Failing({2}, training=True), train(began, silent))
    *_, last = resume(Path(str(began.out)), {"micro_batch": 8}, silent)
    assert last.summary["micro_batch"] == 4


@pytest.mark.parametrize(
    ("asked", "changed"),
    [({"micro_batch": 3}, False), ({"offload": "all"}, True), ({"recompute": "layer"}, True)],
)
def test_plan_of_a_resumed_run_has_no_measurements_of_another_plan(
    killed: Path, tmp_path: Path, asked: dict[str, Any], changed: bool
) -> None:
    run, notes = shutil.copytree(killed, tmp_path / "run"), Notes()
    plan = json.loads((run / "plan.json").read_text()) | {"why": "fast", "memory_bytes": 1}
    (run / "plan.json").write_text(json.dumps(plan))
    events = resume(run, asked, notes)
    started = next(events)
    events.close()
    now = json.loads((run / "plan.json").read_text())
    assert isinstance(started, Started) and started.why == (None if changed else "fast")
    assert now == plan if not changed else "memory_bytes" not in now
    assert not any("precision" in line for line in notes.lines)  # Sums in float32 stay exact.


def test_change_that_rounds_coarsely_is_noted(config: Make) -> None:
    began = config("run", accumulator_dtype="bfloat16", max_updates=1)
    list(train(began, silent))
    folder, notes = RunFolder(Path(str(began.out))), Notes()
    limited = dataclasses.replace(read_run_config(folder.path), memory_limit="4GiB")
    assert changed_plan_options(folder, limited, 1) == ["memory_limit"]
    assert rounding_note(limited, ["memory_limit"]) is None
    events = resume(folder.path, {"max_updates": 2, "offload": "all"}, notes)
    assert isinstance(next(events), Started)
    events.close()
    said = "with another `offload`, the updates match those of the unchanged run only to the"
    assert f"{said} precision of bfloat16" in notes.lines


def test_run_resumes_if_the_checkpoint_it_began_with_has_moved(
    finished: Path, killed: Path, config: Make, tmp_path: Path
) -> None:
    first = shutil.copytree(finished, tmp_path / "first")
    began = config("run", init_checkpoint=str(first), bert_config=None, max_updates=1)
    list(train(began, silent))
    run, moved = Path(str(began.out)), tmp_path / "moved"
    with pytest.raises(ConfigError, match="cannot change `init_checkpoint` to"):
        api.train(resume=run, init_checkpoint=killed)
    first.rename(moved)
    with pytest.raises(InputError, match="first: there is no such file or folder; set `init_ch"):
        api.train(resume=run)
    with pytest.raises(InputError, match="pretrained weights changed since this run began"):
        api.train(resume=run, init_checkpoint=killed)
    assert api.train(resume=run, init_checkpoint=moved).summary["updates"] == 1
    assert read_run_config(run).init_checkpoint == str(moved)


def test_workers_that_repeat_a_command_repeat_its_options(
    finished: Path, reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chief of two workers, without the other one."""
    topology, watch = SimpleNamespace(workers=2), SimpleNamespace(watched=contextlib.nullcontext)
    session = SimpleNamespace(topology=topology, watch=watch)
    monkeypatch.setattr(starting, "connect", lambda *_: session)
    monkeypatch.setattr(starting, "broadcast", lambda _, find: find())
    monkeypatch.setattr(starting, "_continue", lambda *_: ["continued"])
    config = made(reviews, finished)
    assert list(train(config, silent)) == ["continued"]
    for options, message in (
        ({"learning_rate": None}, r"`learning_rate` to its default \(was 0.01\)"),
        ({"seed": 1}, r"`seed` to 1 \(was 0\)"),
        ({"eval_every": 2.0}, r"`eval_every` to 2.0 \(was 2\)"),
    ):
        with pytest.raises(ConfigError, match=rf"run, which cannot change {message}; repeat the"):
            list(train(dataclasses.replace(config, **options), silent))


def test_resume_refuses_another_model(config: Make) -> None:
    """With another number of heads, all weights have the same shapes."""
    run_config = config("run")
    events = train(run_config, silent)
    assert isinstance(next(events), Started)
    events.close()
    path = Path(str(run_config.bert_config))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_attention_heads": 4}))
    with pytest.raises(InputError, match=r"run: model changed since this run began"):
        list(resume(Path(str(run_config.out)), {}, silent))


def test_resume_refuses_fewer_updates_than_the_run_has_made(killed: Path, tmp_path: Path) -> None:
    run = shutil.copytree(killed, tmp_path / "run")
    before = files_of(run)
    with pytest.raises(ConfigError, match="`max_updates` 2 is less than the 3 updates of the che"):
        list(resume(run, {"max_updates": 2}, silent))
    assert files_of(run) == before
    started, *_ = resume(run, {"max_updates": 3}, silent)
    assert isinstance(started, Started)
    assert started.over == "raise `max_updates`, or start a new run"


def test_two_runs_cannot_create_the_same_folder(config: Make) -> None:
    """A second run may start while the first one prepares its model."""
    own = config("run")
    Path(str(own.out)).parent.mkdir(exist_ok=True)
    RunFolder(Path(str(own.out))).create(own, {})
    with pytest.raises(ConfigError, match=r"run exists; resume the run with `resume` .*run, or ch"):
        RunFolder(Path(str(own.out))).create(own, {})


def test_resume_refuses_what_was_edited_in_files(config: Make) -> None:
    run_config = config("run", max_updates=3)
    data, run = Path(run_config.data), Path(str(run_config.out))
    manifest = {"tool": TOOL, "source": "", "task": "classification", "labels": ["bad", "good"]}
    manifest |= {"options": {}, "files": {"train.tsv": "", "dev.tsv": ""}}
    (data / MANIFEST).write_text(json.dumps(manifest))
    run_until(train(run_config, silent), 3)
    before = files_of(run)
    log = (run / "metrics.jsonl").read_text()
    first, second, _ = log.splitlines(keepends=True)
    missing = "the line of update 2 is missing or damaged, but a checkpoint was saved after"
    for path, old, new, message in (
        (
            run / "config.yaml",
            "learning_rate: 0.01\n",
            "learning_rate: 0.02\n",
            "config.yaml: `learning_rate` is 0.02, but was 0.01 when this run began; restore",
        ),
        (run / "config.yaml", "learning_rate: 0.01\n", "", "rate` is .*, but was 0.01 when"),
        (
            run / "config.yaml",
            "seed: 0\n",
            "seed: 7\n",
            "config.yaml: `seed` is 7, but was 0 when this run began; restore",
        ),
        (
            run / "config.yaml",
            "target_batch: 8\n",
            "target_batch: 4\n",
            "config.yaml: `target_batch` is 4, but was 8 when",
        ),
        (data / MANIFEST, '"good"', '"fine"', "run: class names changed since this run began"),
        (data / MANIFEST, '"dev.tsv"', '"test.tsv"', "run: files in manifest.json changed since"),
        (run / "metrics.jsonl", second, "", f"metrics.jsonl: {missing} update 2"),
        (run / "metrics.jsonl", second, second.replace(":", ";"), f"metrics.jsonl: {missing}"),
        (run / "metrics.jsonl", log, first, f"metrics.jsonl: {missing}"),
        (run / "eval.jsonl", '"update": 2', '"update": 1', f"eval.jsonl: {missing}"),
        (run / "inputs.json", '"options": {', '"options": 1, "x": {', "run: the files .* damaged"),
    ):
        text = path.read_text()
        assert old in text, old
        path.write_text(text.replace(old, new))
        edited = files_of(run)
        with pytest.raises(InputError, match=message):
            list(resume(run, {}, silent))
        assert files_of(run) == edited
        path.write_text(text)
    assert files_of(run) == before
    # Options that decide no update may be edited.
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("keep: 2", "keep: 1"))
    *_, last = resume(run, {}, silent)
    assert last.summary["updates"] == 3


def test_damaged_checkpoint_error_names_the_previous_one(killed: Path, tmp_path: Path) -> None:
    run = shutil.copytree(killed, tmp_path / "run")
    first, last = saved_states(run / "checkpoints")
    data, position = last / "state.data-00000-of-00001", last / "position.json"

    def bit_flipped(raw: bytes) -> bytes:
        return raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:]

    hint = "remove it to resume from update-2"
    for path, harm, message in (
        (data, lambda raw: raw[:-1], r"state.data-\S+ does not match its digest"),
        (data, bit_flipped, r"state.data-\S+ does not match its digest"),
        (position, lambda raw: raw.replace(b'"update": 3', b'"update": 4'), "position.json does"),
        (position, lambda raw: raw[: len(raw) // 2], "is damaged"),
        (position, lambda _: b"[]", "is damaged"),
        (position, lambda _: b"{}", "is damaged"),
    ):
        raw = path.read_bytes()
        path.write_bytes(harm(raw))
        with pytest.raises(InputError, match=f"update-3: .*{message}.*; {hint}"):
            list(resume(run, {}, silent))
        path.write_bytes(raw)
    position.unlink()
    with pytest.raises(InputError, match=f"update-3: .*no such file.*; {hint}"):
        list(resume(run, {}, silent))
    shutil.rmtree(first)
    with pytest.raises(InputError, match=r"update-3: .*; restore it, or start a new run with"):
        list(resume(run, {}, silent))


@pytest.mark.parametrize("value", ["3", 3.0, -3, True, None, [3], 2**63, "9" * 99])
@pytest.mark.parametrize("name", ["update", "examples", "shrinkings", "nonfinite_in_a_row"])
def test_counts_of_a_position_are_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name} is .{{1,40}}, not a number from 0 to"):
        Position.of({"run": "mark", "best": None, "last": None, name: value})


@pytest.mark.parametrize("value", ["../../victim", 3.0, -3, True, None, 2**63])
def test_update_of_an_evaluation_is_a_whole_number(tmp_path: Path, value: Any) -> None:
    """A best model that is set aside is renamed after its update."""
    record = {"update": value, "best": True, "accuracy": 0.5}
    with pytest.raises(ValueError, match=r"update is .*, not a number from 0 to 2\*\*63"):
        Position.of({"run": "mark", "best": record, "last": None})
    folder = RunFolder(tmp_path)
    folder.best.mkdir()
    (folder.best / EVALUATION).write_text(json.dumps(record))
    assert best_evaluation(folder) is None


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("../other", "../other is not the name of a file in it"),
        ("/dev/zero", "/dev/zero is not the name of a file in it"),
        ("link", "update-3/link: is a pipe or device, but must be a file"),
        ("absent", "there is no such file"),
    ],
)
def test_checkpoint_names_only_files_in_it(tmp_path: Path, file: str, message: str) -> None:
    state = tmp_path / "update-3"
    state.mkdir()
    (tmp_path / "other").touch()
    if file == "link":
        (state / file).symlink_to("/dev/null")
    empty = hashlib.sha256(b"").hexdigest()
    values = {"position": {"run": "mark"}, "files": {file: empty}}
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    (state / "position.json").write_text(json.dumps(values | {"digest": digest}))
    with pytest.raises(InputError, match=message) as caught:
        read_saved(state, "mark")
    assert "\n" not in str(caught.value) and caught.value.hint


@pytest.mark.slow
def test_checkpoint_before_the_last_best_model_can_be_resumed(
    config: Make, whole: dict[str, Any]
) -> None:
    run_config = config("run", max_updates=4)
    list(train(run_config, silent))
    run = Path(str(run_config.out))
    lines = (run / "eval.jsonl").read_text().splitlines()
    assert [json.loads(line)["best"] for line in lines] == [True, True], (
        "this test needs two best checkpoints"
    )
    states = saved_states(run / "checkpoints")
    assert [p.name for p in states] == ["update-2", "update-3", "update-4"]
    (states[-1] / "position.json").write_text("{}")
    with pytest.raises(InputError, match=r"update-4.*resume from update-3"):
        list(resume(run, {}, silent))
    shutil.rmtree(states[-1])
    events = resume(run, {"max_updates": UPDATES}, silent)
    next(events)
    aside = run / "best-update-4"
    assert aside.is_dir()
    list(events)
    assert result(run) == whole and not aside.exists()


def test_checkpoint_of_another_run_is_an_error(
    killed: Path, finished: Path, tmp_path: Path
) -> None:
    run, name = shutil.copytree(killed, tmp_path / "run"), f"checkpoints/update-{UPDATES}"
    shutil.copytree(finished / name, run / name)
    with pytest.raises(InputError, match=r"update-6: is a checkpoint of another run; remove it"):
        list(resume(run, {}, silent))


@pytest.mark.slow
def test_resume_stays_in_its_run_when_latest_moves(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_config = config("runs/one", max_updates=3)
    monkeypatch.chdir(Path(str(run_config.out)).parents[1])
    run_until(train(run_config, silent), 1)
    link = Path("runs/latest")
    assert link.resolve().name == "one"
    events = resume(link, {}, silent)
    assert next(events).folder == Path("runs/one")  # type: ignore[union-attr]
    link.unlink()
    link.symlink_to("two")
    assert isinstance([*events][-1], Finished)
    assert not Path("runs/two").exists()


@pytest.mark.slow
def test_checkpoint_of_another_model_is_an_error(
    killed: Path, config: Make, tmp_path: Path
) -> None:
    run, foreign = shutil.copytree(killed, tmp_path / "run"), config("other", max_updates=3)
    path = Path(str(foreign.bert_config))
    path.write_text(path.read_text().replace('"intermediate_size": 16', '"intermediate_size": 24'))
    list(train(foreign, silent))
    # The checkpoint gets this run's mark, so that it seems to belong to the run.
    other, name = Path(str(foreign.out)), "checkpoints/update-3"
    shutil.rmtree(run / name)
    shutil.copytree(other / name, run / name)
    inputs = run / "inputs.json"
    marks = [json.loads((one / inputs.name).read_text())["mark"] for one in (run, other)]
    inputs.write_text(inputs.read_text().replace(*marks))
    with pytest.raises(InputError, match=r"update-3: does not match this run's model"):
        list(resume(run, {}, silent))


def test_resume_after_the_run_folder_disappears(config: Make, whole: dict[str, Any]) -> None:
    run_config = config("run")
    run, events = Path(str(run_config.out)), train(run_config, silent)
    for event in events:
        if isinstance(event, Updated) and event.update == 3:
            run.rename(run.with_name("away"))
            break
    with pytest.raises(RunError, match=r"run/\S+: cannot be \w+ \(No such file or directory\)"):
        list(events)
    run.with_name("away").rename(run)
    list(resume(run, {}, silent))
    assert result(run) == whole


@pytest.mark.slow
def test_resume_after_the_run_folder_becomes_read_only(
    config: Make, whole: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run_config = config("run")
    run, events = Path(str(run_config.out)), train(run_config, silent)
    with contextlib.ExitStack() as stack:
        for event in events:
            if isinstance(event, Updated) and event.update == 3:
                stack.enter_context(read_only(run))
                break
        with pytest.raises(RunError, match=r"run/\S+: cannot be \w+ \(Read-only file system\)"):
            list(events)
        with pytest.raises(SystemExit) as end:
            main(["train", "--resume", str(run)])
        assert end.value.code == 1
        line = capsys.readouterr().err.splitlines()[-1]
        assert re.fullmatch(rf"error: {run}\S*: .*Read-only file system.*", line), line
    list(resume(run, {}, silent))
    assert result(run) == whole


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder read-only, even for root, in this context."""
    for options in (["--bind", str(folder)], ["-o", "remount,bind,ro"]):
        done = subprocess.run(["mount", *options, str(folder)], capture_output=True)
        if done.returncode:
            pytest.skip("needs root to mount a folder read-only")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.slow
def test_resume_when_the_clock_runs_backwards(
    config: Make, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock goes back one hour each time it is read."""
    hours = itertools.count()

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Clock:
            return cls.fromtimestamp(2e9 - 3600 * next(hours), tz)

    run_config = dataclasses.replace(config("run"), out=None)
    monkeypatch.chdir(Path(run_config.data).parent)
    monkeypatch.setattr(datetime, "datetime", Clock)
    monkeypatch.setattr(time, "time", lambda: 2e9 - 3600 * next(hours))
    list(train(dataclasses.replace(run_config, max_updates=0), silent))
    older = Path("runs/latest").resolve()
    run_until(train(run_config, silent), 3)
    assert Path("runs/latest").resolve().name < older.name
    *updates, _, last = resume(Path("runs/latest"), {}, silent)
    assert min(event.seconds for event in updates if isinstance(event, Updated)) > 0
    assert isinstance(last, Finished)
    assert last.summary["total_seconds"] >= last.summary["training_seconds"] > 0
    assert result("runs/latest") == whole


def test_two_processes_cannot_train_in_one_folder(config: Make) -> None:
    run_config = config("run")
    events = train(run_config, silent)
    assert isinstance(next(events), Started)
    message = f"process {os.getpid()} is training in this folder; wait for it to finish, or stop it"
    with pytest.raises(InputError, match=message):
        list(resume(Path(str(run_config.out)), {}, silent))
    events.close()
    with RunFolder(Path(str(run_config.out))).locked():
        pass  # Closing the run released its lock.


def test_latest_is_the_run_that_was_trained_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = (RunFolder(Path("runs") / name) for name in ("one", "two"))
    for folder in (one, two):
        folder.create(TrainConfig(), {})
    for folder in (one, two, one):
        with folder.locked():
            folder.point_latest()
            assert Path("runs/latest").resolve() == folder.path.resolve()


def test_latest_that_is_a_folder_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of `runs` that follows links contains the run itself."""
    monkeypatch.chdir(tmp_path)
    one, latest = (RunFolder(Path("runs") / name) for name in ("one", "latest"))
    one.create(TrainConfig(), {})
    shutil.copytree(one.path, latest.path)
    what = "runs/latest is not a link, so it does not stand for this run"
    remedy = "pass `run` runs/one to later commands, or delete runs/latest"
    assert one.point_latest() == f"{what}; {remedy}"
    assert latest.point_latest() is None


def test_run_notes_what_its_file_system_lacks(
    config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for owner, name, code in ((Path, "symlink_to", errno.EPERM), (fcntl, "flock", errno.ENOLCK)):
        monkeypatch.setattr(owner, name, Mock(side_effect=OSError(code, os.strerror(code))))
    run, notes = RunFolder(tmp_path / "runs/one"), Notes()
    *_, last = train(config("runs/one", max_updates=0), notes)
    assert isinstance(last, Finished)
    own = "so make sure that no other process trains in this folder"
    assert f"{run.path}: its file system has no locks, {own}" in notes.lines
    what = "runs/latest cannot be made a link to this run (Operation not permitted)"
    assert f"{what}; pass `run` {run.path} to later commands" in notes.lines
    assert [path.name for path in Path("runs").iterdir()] == ["one"]


@pytest.mark.slow
def test_full_disk_leaves_earlier_checkpoints_intact(
    killed: Path, whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up while a file of a checkpoint is written, or while files are flushed."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = shutil.copytree(killed, tmp_path / "run")
    message = r"No space left on device.*with `resume`; earlier checkpoints are intact"
    for where, what in ((checkpoints, "write_text"), (atomic, "sync"), (atomic, "_put_folder")):
        with monkeypatch.context() as patch:
            patch.setattr(where, what, full)
            with pytest.raises(BertAccumError, match=message) as error:
                list(resume(run, {}, silent))
            assert isinstance(error.value, RunError)
    list(resume(run, {}, silent))
    assert result(run) == whole


@pytest.mark.slow
def test_error_without_any_checkpoint_says_the_run_starts_over(
    config: Make, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run_config = config("run")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_text", full)
        with pytest.raises(RunError, match=r"run again with `resume` to start over$"):
            list(train(run_config, silent))
    list(resume(Path(str(run_config.out)), {}, silent))
    assert result(str(run_config.out)) == whole


def test_nonfinite_updates_that_do_not_follow_each_other_are_skipped(config: Make) -> None:
    """The first and the third window, of three and two micro-steps, are not finite."""
    passes = itertools.count()

    def value() -> np.ndarray:
        return np.float32("nan" if next(passes) // 3 in (0, 2) else 0)

    change = ChangedLogits(lambda logits, _: logits + tf.numpy_function(value, [], tf.float32))
    *_, last = under(change, train(config("run", max_nonfinite=2, epochs=1.0), silent))
    assert (last.summary["updates"], last.summary["skipped_windows"]) == (3, 2)


def test_consecutive_nonfinite_updates_stop_training(config: Make) -> None:
    def changed(logits: Any, texts: Any) -> Any:
        # The logits of the longest reviews, which come last in a window, become NaN.
        bad = tf.reduce_max(texts.lengths) >= 8
        return logits + tf.where(bad, float("nan"), 0.0)

    run_config = config("run", max_nonfinite=2, cut="count")
    message = (
        r"the loss of micro-batch [23] of 3 in update 2 is not finite \(train.tsv, rows"
        r" (\d+(?:, \d+)*)\), as in each of the last 2 updates; lower `learning_rate`$"
    )
    with pytest.raises(RunError, match=message) as error:
        under(ChangedLogits(changed), train(run_config, silent))
    rows = re.search(message, str(error.value))
    assert rows is not None
    lines = (Path(run_config.data) / "train.tsv").read_text().splitlines()
    longest = {lines[int(row) - 1].count("very") for row in rows[1].split(", ")}
    assert max(longest) in (3, 4)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [("200", (200, None)), ("90s", (None, 90.0)), ("10m", (None, 600.0)), ("2 h", (None, 7200.0))],
)
def test_save_every_is_a_number_of_updates_or_a_time(
    text: str, meaning: tuple[int | None, float | None]
) -> None:
    assert save_interval(text) == meaning


@pytest.mark.parametrize("text", ["0", "", "-1", "1.5", "10d", "m", "0m", "1e3", "٣"])
def test_invalid_save_every_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="is neither a number of updates nor a time; write it as"):
        save_interval(text)
