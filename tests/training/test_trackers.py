"""Trackers receive what the run folder contains, once, and cannot change or stop a run."""

from __future__ import annotations

import contextlib
import json
import signal
import struct
import threading
import time
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from forked import PROGRAM, Forked
from resuming import result
from small import Notes, write_small_task

import bertaccum
from bertaccum.cli.program import main
from bertaccum.errors import ConfigError
from bertaccum.options.fields import tracker_names
from bertaccum.runs.record import read_record
from bertaccum.system.stopping import Stopping
from bertaccum.training import inputs, trackers
from bertaccum.training.tensorboard_log import tagged_values
from bertaccum.training.trackers import TRACKERS

Histories = dict[str, list[tuple[int, float]]]


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a small data set, and the dimensions of a small encoder."""
    folder = tmp_path_factory.mktemp("data") / "reviews"
    write_small_task(folder, train=20, dev=10)
    return folder


def options_of(reviews: Path, out: Path) -> dict[str, Any]:
    """Return the options of a run of six updates."""
    values = {"data": str(reviews), "bert_config": str(reviews / "bert_config.json")}
    values |= {"init_checkpoint": "none", "max_seq_length": 16, "target_batch": 8}
    values |= {"micro_batch": 3, "epochs": 2.0, "eval_every": 2, "noise_scale": "none"}
    return values | {"out": str(out)}


@pytest.fixture
def options(reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the options of a run of six updates in the test's own folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trackers, "_PATIENCE", 600.0)  # Other programs may use the machine.
    return options_of(reviews, tmp_path / "run")


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a client of MLflow, which keeps its runs in files in the test's folder."""
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "reviews")
    return MlflowClient()


def the_run(client: Any) -> Any:
    """Return the only run in MLflow."""
    (experiment,) = (e for e in client.search_experiments() if e.name == "reviews")
    (run,) = client.search_runs([experiment.experiment_id])
    return run


def histories(client: Any) -> Histories:
    """Return all values of the only run, in the order in which MLflow received them."""
    run = the_run(client)
    return {
        tag: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, tag)]
        for tag in run.data.metrics
        if not tag.startswith("summary/")
    }


def logged(run: Path) -> Histories:
    """Return what the logs of a run contain for trackers."""
    found: Histories = {}
    record = read_record(run)
    for line in (*record.updates, *record.evaluations):
        for tag, value in tagged_values(line).items():
            found.setdefault(tag, []).append((line["update"], value))
    return found


def test_mlflow_continues_with_what_it_lacks(options: dict[str, Any], mlflow: Any) -> None:
    run = Path(options["out"])
    bertaccum.train(**options | {"eval_every": 1}, max_updates=2)
    # MLflow receives a run that began without it, then more updates, then updates without it.
    for updates, track in ((3, "mlflow"), (5, "none"), (5, "mlflow")):
        summary = bertaccum.train(resume=run, track=track, max_updates=updates).summary
    assert histories(mlflow) == logged(run)
    assert summary is not None and len(logged(run)["train/loss"]) == 5
    found = the_run(mlflow)
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert (
        found.data.params.items() >= {"target_batch": "8", "seed": "0", "recompute": "none"}.items()
    )
    assert found.data.metrics["summary/best_dev_accuracy"] == summary["best_dev_accuracy"]
    files = {file.path for file in mlflow.list_artifacts(found.info.run_id)}
    names = ("config.yaml", "metrics.jsonl", "eval.jsonl", "summary.json", "model-card.md")
    assert files == set(names)
    sent = Path(found.info.artifact_uri.removeprefix("file://"), "metrics.jsonl")
    assert sent.read_text() == (run / "metrics.jsonl").read_text()


@pytest.mark.parametrize(("ended", "status"), [("signal", "KILLED"), ("error", "FAILED")])
def test_mlflow_shows_how_a_run_ended(
    options: dict[str, Any], mlflow: Any, monkeypatch: pytest.MonkeyPatch, ended: str, status: str
) -> None:
    stopping = Stopping()

    def stop(event: object) -> None:
        if isinstance(event, bertaccum.Updated):
            stopping.requested = signal.SIGTERM
            assert ended == "signal"

    tracked_while_saving = []

    def close(self: Any, outcome: str) -> None:
        tracked_while_saving.append(stopping._saving)
        true_close(self, outcome)

    true_close = trackers.TrackedRun.close
    monkeypatch.setattr(trackers.TrackedRun, "close", close)
    expected = pytest.raises(AssertionError) if ended == "error" else contextlib.nullcontext()
    with expected:
        bertaccum.train(**options, track="mlflow", callback=stop, stopping=stopping)
    # The end of the grace period would end the process before the tracker has everything.
    assert tracked_while_saving == [True]
    assert the_run(mlflow).info.status == status
    assert histories(mlflow)["train/loss"][0] == logged(Path(options["out"]))["train/loss"][0]


@pytest.mark.slow
def test_run_killed_and_resumed_is_one_run_in_mlflow(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    client, run = MlflowClient(), Path(options["out"])
    client.create_experiment("reviews", (tmp_path / "artifacts").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "reviews")
    values = options | {"track": "mlflow", "epochs": 10000.0, "eval_every": 7, "save_every": 5}
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in values.items()]
    process = Forked(PROGRAM, "train", *flags, cwd=tmp_path)
    while not ((run / "mlflow.json").exists() and len(histories(client)) > 6):
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before, saved = histories(client), sorted((run / "checkpoints").glob("update-*"))
    assert the_run(client).info.status == "RUNNING"
    done = int(saved[-1].name.removeprefix("update-"))
    bertaccum.train(resume=run, max_updates=max(done, before["train/loss"][-1][0]) + 9)
    assert the_run(client).info.status == "FINISHED"
    found, whole = histories(client), logged(run)
    for tag, values in whole.items():
        assert [step for step, _ in found[tag]] == [step for step, _ in values], tag
    assert found["train/loss"] == whole["train/loss"]


def test_wandb_has_the_values_of_the_logs(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    summary = bertaccum.train(**options, track="wandb").summary
    assert summary is not None
    run = Path(options["out"])
    run_id = json.loads((run / "wandb.json").read_text())["run_id"]
    (log,) = Path("wandb").glob(f"offline-run-*-{run_id}/*.wandb")
    records = list(wandb_records(log))
    found: Histories = {}
    scores: dict[str, Any] = {}
    config: dict[str, Any] = {}
    for record in records:
        row, new = values_of(record.history.item), values_of(record.summary.update)
        for tag in row.keys() & logged(run).keys():
            found.setdefault(tag, []).append((row["_step"], row[tag]))
        scores, config = scores | new, config | values_of(record.config.update)
    assert found == logged(run)
    assert config["target_batch"] == 8 and config["micro_batch"] == 3
    assert scores["summary/best_dev_accuracy"] == summary["best_dev_accuracy"]
    assert (log.parent / "files/metrics.jsonl").read_text() == (run / "metrics.jsonl").read_text()


def values_of(items: Any) -> dict[str, Any]:
    """Return the values in a part of a record of W&B."""
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def wandb_records(path: Path) -> Iterator[Any]:
    """Yield the records in a file of W&B, which is a log of LevelDB.

    Source: https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, data = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (left := 2**15 - at % 2**15) < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        data, at = data + content[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):
            yield Record.FromString(data)
            data = b""


class Broken:
    """A tracker of which one method raises."""

    run_id, where, broken = "1", "here", ""

    def __init__(self, *_: object) -> None:
        self._raise("__init__")

    def log(self, *_: object) -> None:
        self._raise("log")

    def finish(self, *_: object) -> None:
        self._raise("finish")

    def _raise(self, name: str) -> None:
        if name == self.broken:
            raise SystemExit("the server is down\nTraceback: …")


@pytest.fixture(scope="module")
def untracked(reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the result of a run without trackers."""
    out = tmp_path_factory.mktemp("untracked") / "run"
    bertaccum.train(**options_of(reviews, out))
    return result(out)


def test_failing_tracker_changes_nothing_and_is_noted_once(
    options: dict[str, Any], untracked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trackers fail when they start or get values, and, when the run is resumed, at their end."""
    monkeypatch.setattr(trackers, "_INTERVAL", 0.0)
    for given, broken in (
        (options, {"mlflow": "__init__", "wandb": "log"}),
        ({"resume": options["out"]}, {"mlflow": "finish"}),
    ):
        for name, method in broken.items():
            monkeypatch.setitem(TRACKERS, name, type("Own", (Broken,), {"broken": method}))
        notes = Notes()
        bertaccum.train(**given, track=",".join(broken), progress=notes)
        assert result(options["out"]) == untracked
        failures = [line for line in notes.lines if "does not show all of this run" in line]
        assert len(failures) == len(broken)
        for line in failures:
            assert "(the server is down); training is not affected, and `resume`" in line


def test_tracker_that_does_not_answer_delays_no_update(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tracker waits until the test ends, and the run waits for it only at the end."""
    answer, notes = threading.Event(), Notes()

    def wait(*_: object) -> None:
        answer.wait()

    monkeypatch.setattr(Broken, "log", wait)
    monkeypatch.setattr(trackers, "_INTERVAL", 0.0)
    monkeypatch.setattr(trackers, "_PATIENCE", 0.1)
    monkeypatch.setitem(TRACKERS, "mlflow", Broken)
    try:
        assert bertaccum.train(**options, track="mlflow", progress=notes).finished
        assert "no answer within" in notes.lines[-1]
    finally:
        answer.set()


def test_missing_package_is_one_line(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A folder `wandb` is found as a package without a file.
    found = {"mlflow": None, "wandb": ModuleSpec("wandb", None, origin=None)}
    monkeypatch.setattr(inputs, "find_spec", found.get)
    for name in found:
        with pytest.raises(SystemExit) as left:
            main(["train", "--data", options["data"], "--track", name])
        assert left.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()[-1:]
        assert line == (
            f"error: --track {name} needs the package {name}; run pip install"
            f" 'bertaccum[{name}]', or set --track none"
        )


def test_unknown_tracker_is_an_error() -> None:
    assert tracker_names("none") == []
    assert tracker_names("mlflow, wandb") == ["mlflow", "wandb"]
    with pytest.raises(ConfigError, match=r"`track` mlfow: 'mlfow' is not .* use none, mlflow"):
        tracker_names("mlfow")
