"""Runs in MLflow and Weights & Biases, beside their run folders.

A tracker can neither stop a run nor change its updates: a thread sends it the lines of the logs,
and an error there ends only the tracking. The folder of the run contains the identity that the run
has in the tracker, so that a resumed run continues there and sends only what the tracker lacks.
"""

from __future__ import annotations

import importlib
import os
import queue
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from bertaccum.errors import reason
from bertaccum.options.fields import tracker_names
from bertaccum.runs.paths import RUNS
from bertaccum.runs.record import Record
from bertaccum.system.atomic import write_text
from bertaccum.system.files import json_text, read_mapping
from bertaccum.training.tensorboard_log import tagged_values

# How a run ended, in the words of MLflow.
FINISHED, KILLED, FAILED = "FINISHED", "KILLED", "FAILED"
# Seconds between two messages to a tracker, and to wait for it when the run ends.
_INTERVAL, _PATIENCE = 1.0, 20.0
# MLflow accepts at most this many values in a message.
_BATCH = 1000

# An update, and the values of one line of the logs by tag.
Point: TypeAlias = tuple[int, dict[str, float]]


class Tracker(Protocol):
    """A run as a tracker sees it. Each method may raise any exception.

    Args:
      run_id: Identity of the run in the tracker; None for a new run.
      name: Name of a new run.
      parameters: Options of the run.
    """

    run_id: str
    where: str  # A URL or path for the user.

    def __init__(self, run_id: str | None, name: str, parameters: dict[str, Any]) -> None: ...

    def log(self, points: list[Point]) -> None:
        """Send values in the order of their updates; skip those that the tracker has."""

    def finish(self, outcome: str, last: Point, files: list[Path]) -> None:
        """Send the final scores and files, and end the run."""


class MlflowRun:
    """A run in MLflow."""

    def __init__(self, run_id: str | None, name: str, parameters: dict[str, Any]) -> None:
        import mlflow
        from mlflow.entities import Param

        run = mlflow.start_run(run_id=run_id, run_name=None if run_id else name)
        self.run_id, self._client = run.info.run_id, mlflow.MlflowClient()
        self.where = f"{mlflow.get_tracking_uri()}, run {self.run_id}"
        # MLflow does not change a parameter, so those of a resumed run are those of its start.
        new = {key: parameters[key] for key in parameters.keys() - run.data.params.keys()}
        self._client.log_batch(self.run_id, params=[Param(k, str(v)) for k, v in new.items()])
        self._last = {
            tag: max(value.step for value in self._client.get_metric_history(self.run_id, tag))
            for tag in run.data.metrics
        }

    def log(self, points: list[Point]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(tag, value, now, update)
            for update, values in points
            for tag, value in values.items()
            if update > self._last.get(tag, -1)
        ]
        for begin in range(0, len(metrics), _BATCH):
            self._client.log_batch(self.run_id, metrics[begin : begin + _BATCH])

    def finish(self, outcome: str, last: Point, files: list[Path]) -> None:
        import mlflow

        try:
            self.log([last])
            for file in files:
                self._client.log_artifact(self.run_id, str(file))
        finally:
            mlflow.end_run(outcome)


class WandbRun:
    """A run in Weights & Biases, which itself sends values in a process of its own."""

    def __init__(self, run_id: str | None, name: str, parameters: dict[str, Any]) -> None:
        import wandb

        self._run = wandb.init(
            id=run_id,
            name=os.environ.get("WANDB_NAME", name),
            resume="allow",
            reinit="create_new",  # The user may have a run of their own in this process.
            # The process itself waits for W&B as well when it ends.
            settings=wandb.Settings(
                console="off", silent=True, init_timeout=_PATIENCE, finish_timeout=_PATIENCE
            ),
        )
        self.run_id = self._run.id
        self.where = self._run.dir if self._run.offline else str(self._run.url)
        self._run.config.update(parameters, allow_val_change=True)
        self._first = self._run.step

    def log(self, points: list[Point]) -> None:
        for update, values in points:
            if update >= self._first:
                self._run.log(values, step=update)

    def finish(self, outcome: str, last: Point, files: list[Path]) -> None:
        self._run.summary.update(last[1])
        for file in files:  # W&B would link to files elsewhere, and warn.
            shutil.copy(file, self._run.dir)
            self._run.save(Path(self._run.dir, file.name), base_path=self._run.dir, policy="now")
        self._run.finish(exit_code=int(outcome != FINISHED))


TRACKERS: dict[str, type[Tracker]] = {"mlflow": MlflowRun, "wandb": WandbRun}


class TrackedRun:
    """A thread that sends the lines of a run's logs to a tracker, from the first one on.

    Args:
      tracker: Name of the tracker.
      record: Record of the run so far.
      parameters: Options of the run.
    """

    def __init__(self, tracker: str, record: Record, parameters: dict[str, Any]) -> None:
        self._tracker, self._paths, self._parameters = tracker, record.paths, parameters
        self._lines = queue.SimpleQueue[dict[str, Any]]()
        self._notes = queue.SimpleQueue[str]()
        self._closing, self._outcome = threading.Event(), FAILED
        self._thread = threading.Thread(target=self._work, name=tracker, daemon=True)
        for line in sorted((*record.updates, *record.evaluations), key=lambda row: row["update"]):
            self._lines.put(line)
        try:
            importlib.import_module(tracker)  # In this thread, which imports modules as well.
        except Exception as error:
            self._fail(error)
        else:
            self._thread.start()

    def add(self, line: dict[str, Any]) -> None:
        """Send a line of `metrics.jsonl` or `eval.jsonl`, unless the tracker has failed."""
        if self._thread.is_alive():
            self._lines.put(line)

    def new_notes(self) -> Iterator[str]:
        """Yield what the user should know and has not been told."""
        while not self._notes.empty():
            yield self._notes.get()

    def close(self, outcome: str) -> None:
        """Send the final scores and the files, and wait some seconds for the tracker."""
        self._outcome = outcome
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            self._fail(TimeoutError(f"no answer within {_PATIENCE:.0f} s"))

    def _work(self) -> None:
        try:
            path, runs = self._paths.tracked(self._tracker), RUNS.resolve()
            folder = self._paths.path.resolve()
            name = str(folder.relative_to(runs)) if runs in folder.parents else folder.name
            known = (read_mapping(path) or {}).get("run_id")
            run = TRACKERS[self._tracker](known, name, self._parameters)
            write_text(path, json_text({"run_id": run.run_id, "where": run.where}))
            self._notes.put(f"{self._tracker} shows this run: {run.where}")
            while not self._closing.wait(_INTERVAL):
                run.log(self._waiting())
            run.log(self._waiting())
            summary = read_mapping(self._paths.summary) or {}
            scores = {key: value for key, value in summary.items() if type(value) in (int, float)}
            last = summary.get("updates", 0), {f"summary/{key}": v for key, v in scores.items()}
            run.finish(self._outcome, last, self._files())
        except BaseException as error:  # A tracker may raise SystemExit.
            self._fail(error)

    def _waiting(self) -> list[Point]:
        lines = [self._lines.get() for _ in range(self._lines.qsize())]
        return [(line["update"], values) for line in lines if (values := tagged_values(line))]

    def _files(self) -> list[Path]:
        paths = self._paths
        files = (paths.config, paths.metrics, paths.eval, paths.summary, paths.card, paths.page)
        return [file for file in files if file.is_file()]

    def _fail(self, error: BaseException) -> None:
        what = f"{self._tracker} does not show all of this run ({reason(error)})"
        self._notes.put(f"{what}; training is not affected, and `resume` sends the rest")


def track(record: Record, plan: dict[str, Any]) -> list[TrackedRun]:
    """Begin to send a run to the trackers that its options name.

    Args:
      record: Record of the run so far.
      plan: How windows are split, which replaces `auto` in the options.
    """
    values = vars(record.config) | plan
    unset = {key for key, value in values.items() if value is None} | {"out", "track"}
    parameters = {key: value for key, value in values.items() if key not in unset}
    return [TrackedRun(name, record, parameters) for name in tracker_names(record.config.track)]
