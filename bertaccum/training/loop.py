"""The training loop: updates, logs, evaluations and checkpoints of a run."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum.errors import InputError
from bertaccum.options.fields import save_interval
from bertaccum.options.metrics import metric_of
from bertaccum.planning.planner import learned_limits
from bertaccum.reporting.model_card import write_card
from bertaccum.runs.folder import RunFolder
from bertaccum.runs.record import read_record
from bertaccum.system.progress import tell
from bertaccum.system.stopping import StoppedEarlyError
from bertaccum.tasks.head_mapping import head_difference
from bertaccum.training.checkpoints import CUT, Checkpoints, Position
from bertaccum.training.dev_evaluator import DevEvaluator
from bertaccum.training.events import (
    Evaluated,
    Event,
    Finished,
    OutOfMemory,
    Started,
    Stopped,
    Updated,
)
from bertaccum.training.recipe import default_learning_rate
from bertaccum.training.setup import Setup
from bertaccum.training.tensorboard_log import TensorBoardLog
from bertaccum.training.trackers import FAILED, FINISHED, KILLED, TrackedRun, track
from bertaccum.training.updater import Updater
from bertaccum.version import __version__

# Values of plan.json that were measured for the plan with which the run began.
_MEASURED = ("peak_memory_bytes", "examples_per_second", "compiled_examples_per_second")


class Run:
    """A run in progress. Only the chief writes to its folder.

    Args:
      setup: Everything that the run needs.
      folder: Run folder.
      position: Where the run starts or continues.
    """

    def __init__(self, setup: Setup, folder: RunFolder, position: Position) -> None:
        self.setup, self.config, self.model = setup, setup.config, setup.model
        self.session, self.topology = setup.session, setup.session.topology
        self.folder, self.position = folder, position
        self._plan_record = setup.plan_record
        self.updater = Updater(setup)
        self.updater.noise.sums = position.noise
        self.optimizer = self.updater.optimizer
        self.evaluator = DevEvaluator(setup, folder)
        adapted = setup.adapted
        self.checkpoints = Checkpoints(
            *(self.model, self.optimizer, folder, self.config.keep),
            trained_only=adapted is not None and adapted.base is not None,
        )
        self.tensorboard: TensorBoardLog | None = None
        self.tracked: list[TrackedRun] = []
        self._began = time.perf_counter() - position.total_seconds
        self._saved, self._saved_at = position.update, time.monotonic()

    def events(self) -> Iterator[Event]:
        """Train, and yield the events; the last one is `Finished` or `Stopped`."""
        if self.topology.chief and (note := self.folder.point_latest()):
            tell(self.session.progress, note)
        try:
            self._write_plan()
            if self.topology.chief:
                record = read_record(self.folder.path)
                self.tensorboard = TensorBoardLog(self.folder.tensorboard, record)
                plan = {name: getattr(self.updater.plan, name) for name in CUT}
                self.tracked = track(record, plan)
            yield self._started()
            self.session.stopping.call_on_signal(self.updater.stop)
            try:
                yield from self._loop()
                self._save()
                # This last evaluation is off schedule, so it is not saved with the checkpoint.
                last = self.position.last
                if last is None or self.position.evaluated < self.position.update:
                    yield (last := self._evaluate())
            except StoppedEarlyError:
                self._save()
                # Another worker may have received the signal.
                number = self.session.stopping.requested or signal.SIGTERM
                workers = self.topology.workers
                self._close_trackers(KILLED)
                yield Stopped(self.position.update, number, self.folder.path, workers)
                return
            summary = self._finish(last)
            self._close_trackers(FINISHED)
            yield Finished(summary)
        finally:
            self.updater.close()
            # Otherwise, the callback for signals would keep this run's model in memory.
            self.session.stopping.call_on_signal(lambda: None)
            if self.tensorboard is not None:
                self.tensorboard.close()
            self._close_trackers(FAILED)

    def _loop(self) -> Iterator[Event]:
        """Train until no updates are left; evaluate and save whenever this is due."""
        updater = self.updater
        while True:
            if not updater.is_running:
                if self._evaluation_is_due():
                    yield self._evaluate_on_schedule()
                # The checkpoint records the best evaluation, so it is saved after the evaluation.
                if self._saving_is_due():
                    self._save()
                if not self._updates_are_left():
                    return
                # With several workers, the update itself makes all of them stop together.
                if self.topology.workers == 1 and self.session.asked_to_stop():
                    raise StoppedEarlyError
                updater.start(self.position.update)
            event = updater.wait()
            if isinstance(event, OutOfMemory):
                self._log(self.folder.metrics, event)
                self.position.shrinkings += 1
                what = f"micro-batches of {event.out_of_memory} ran out of memory"
                self._write_plan(f"{what} in update {event.update}")
                yield event
                updater.start(self.position.update, again=True)
                continue
            self._count(event)
            if self._next_may_start():
                updater.start(self.position.update)
            self._log(self.folder.metrics, event)
            if self._has_diverged():
                numbers = self.setup.example_numbers()
                in_a_row = self.position.nonfinite_in_a_row
                raise updater.not_finite(event.update, in_a_row, numbers)
            yield event

    def _next_may_start(self) -> bool:
        """Return whether the next update may start before the last one is logged.

        Workers may differ in the result: whatever it is, their next reduction is that of the next
        update, because only the chief saves checkpoints, and evaluations are due on all workers.
        """
        if not self.updater.overlaps or self.session.asked_to_stop():
            return False
        pause = self._evaluation_is_due() or self._saving_is_due() or self._has_diverged()
        return self._updates_are_left() and not pause

    def _count(self, updated: Updated) -> None:
        position = self.position
        position.update, position.loss = updated.update, updated.loss
        position.examples += updated.examples
        position.noise = self.updater.noise.sums
        position.seconds += updated.seconds
        peaks = filter(None, (updated.peak_memory_bytes, position.peak_memory_bytes))
        position.peak_memory_bytes = max(peaks, default=None)
        position.nonfinite_in_a_row = position.nonfinite_in_a_row + 1 if updated.skipped else 0

    def _has_diverged(self) -> bool:
        return self.position.nonfinite_in_a_row >= self.config.max_nonfinite

    def _updates_are_left(self) -> bool:
        return self.position.update < self.setup.last_update and not self._patience_is_over()

    def _patience_is_over(self) -> bool:
        best, last, patience = self.position.best, self.position.last, self.config.patience
        if patience is None or best is None or last is None:
            return False
        return last.update - best.update >= patience * self.setup.updates_between_evaluations

    def _evaluation_is_due(self) -> bool:
        now = self.position.update
        return now > self.position.evaluated and now % self.setup.updates_between_evaluations == 0

    def _evaluate_on_schedule(self) -> Evaluated:
        self.position.last = evaluated = self._evaluate()
        if evaluated.best:
            self.position.best = evaluated
            self._save()
        return evaluated

    def _evaluate(self) -> Evaluated:
        evaluated = self.evaluator.evaluate(self.position.update, self.position.best)
        self._log(self.folder.eval, evaluated)
        return evaluated

    def _saving_is_due(self) -> bool:
        if not self.topology.chief:
            return False
        updates, seconds = save_interval(self.config.save_every)
        if updates is not None:
            return self.position.update - self._saved >= updates
        return seconds is not None and time.monotonic() - self._saved_at >= seconds

    def _save(self) -> None:
        # Do not save a checkpoint of the same update again. The saved one lacks at most one
        # evaluation, which is repeated when the run is resumed.
        if self._saved == self.position.update or not self.topology.chief:
            return
        self.position.total_seconds = time.perf_counter() - self._began
        with self.session.stopping.saving():
            self.folder.sync_logs()
            self.checkpoints.save(self.position, self.updater.plan)
        self._saved, self._saved_at = self.position.update, time.monotonic()

    def _log(self, path: Path, event: Updated | Evaluated | OutOfMemory) -> None:
        values = event.record() if isinstance(event, Evaluated) else dataclasses.asdict(event)
        line = {"kind": event.kind} | values
        if self.topology.chief:
            self.folder.append(path, line)
        if self.tensorboard is not None:
            self.tensorboard.add(line)
        for tracked in self.tracked:
            tracked.add(line)
        self._show_tracker_notes()

    def _show_tracker_notes(self) -> None:
        for tracked in self.tracked:
            for note in tracked.new_notes():
                tell(self.session.progress, note)

    def _close_trackers(self, outcome: str) -> None:
        with self.session.stopping.saving():  # Each tracker limits its own time.
            for tracked in self.tracked:
                tracked.close(outcome)
        self._show_tracker_notes()
        self.tracked = []

    def _write_plan(self, why: str | None = None) -> None:
        """Write the current plan, the learned memory limits and the run's length to plan.json.

        Args:
          why: Reason for the plan if it differs from the plan written before.
        """
        plan, known = self.updater.plan, self._plan_record
        if any(known.get(name) != getattr(plan, name) for name in CUT):
            known = {name: known[name] for name in known if name not in _MEASURED} | {"why": why}
        now = dataclasses.asdict(plan) | {"updates": self.setup.last_update}
        learned = {"learned_limits": learned_limits(self.setup.request)}
        self._plan_record = known | now | learned
        if self.topology.chief:
            self.folder.write_json(self.folder.plan, self._plan_record)

    def _started(self) -> Started:
        inputs, source = self.setup.inputs, self.setup.inputs.source
        return Started(
            folder=self.folder.path,
            model=source.name,
            pretrained=source.checkpoint is not None,
            parameters=self.model.count_params(),
            train_examples=(labeled := self.setup.labeled_examples),
            dev_examples=len(self.setup.dev_store),
            plan=self.updater.plan,
            why=self._plan_record["why"],
            updates=self.setup.last_update,
            done=self.position.update,
            over="" if self._updates_are_left() else self._how_to_train_longer(),
            worker=self.topology.worker,
            pretrained_pooler=source.has_pooler,
            pretrained_run=source.name if source.of_run else None,
            pretrained_head=inputs.head is not None,
            head_difference="" if inputs.head else head_difference(source, inputs.labels),
            best_by=self.setup.best_by,
            learning_rate=(rate := self.setup.config.learning_rate or math.nan),
            default_rate=rate == default_learning_rate(source),
            truncation=self.setup.train_store.truncation,
            doubt=inputs.vocabulary.casing_warning(),
            teacher=self.config.teacher,
            unlabeled_examples=len(self.setup.train_store) - labeled,
        )

    def _how_to_train_longer(self) -> str:
        if self.position.update < self.setup.last_update:
            return "raise `patience`, or start a new run"
        ends_early = self.setup.last_update < self.setup.scheduled_updates
        return "raise `max_updates`, or start a new run" if ends_early else "start a new run"

    def _finish(self, last: Evaluated) -> dict[str, Any]:
        """Write and return the summary; write the model card."""
        self.position.total_seconds = time.perf_counter() - self._began
        summary = self._summary(last, last if last.best else self.position.best or last)
        if self.topology.chief:
            self.folder.write_json(self.folder.summary, summary)
            # A model card that cannot be written does not invalidate the run.
            with contextlib.suppress(InputError, OSError):
                write_card(self.folder.path)
        return summary

    def _summary(self, last: Evaluated, best: Evaluated) -> dict[str, Any]:
        now, metrics, best_by = self.position, self.setup.task.metrics, self.setup.best_by
        source = self.setup.inputs.source
        return {
            "updates": now.update,
            "epochs": math.ceil(now.update / self.setup.updates_per_epoch),
            "examples": now.examples,
            "final_loss": now.loss if now.update else None,
            "best_by": best_by,
            "best_metric": metric_of(best.record(), best_by),
            "best_update": best.update,
            # These metrics are those of the best checkpoint, whichever metric selected it.
            **{f"best_dev_{metric}": best.scores[metric] for metric in metrics},
            f"final_dev_{metrics[0]}": last.scores[metrics[0]],
            "best_evaluation": best.record(),
            "last_evaluation": last.record(),
            "stopped_early": now.update < self.setup.last_update,
            "skipped_windows": int(self.optimizer.skipped_windows.numpy()),
            "training_seconds": round(now.seconds, 3),
            "total_seconds": round(now.total_seconds, 3),
            "examples_per_second": round(now.examples / now.seconds, 3) if now.seconds else None,
            "peak_memory_bytes": now.peak_memory_bytes,
            "out_of_memory": now.shrinkings,
            **{name: getattr(self.updater.plan, name) for name in CUT},
            "model": source.name,
            "pretrained": source.checkpoint is not None,
            "parameters": self.model.count_params(),
            "best_bytes": sum(file.stat().st_size for file in self.folder.best.glob("*")),
            "versions": {
                "bertaccum": __version__,
                "tensorflow": tf.__version__,
                "tf_keras": tf_keras.__version__,
            },
        }
