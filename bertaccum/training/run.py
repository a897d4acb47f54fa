"""A run in progress: its updates, evaluations, checkpoints and best model."""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras

from bertaccum.options.fields import save_interval
from bertaccum.options.metrics import metric_of
from bertaccum.planning.plan_request import learned_limits
from bertaccum.runs.folder import RunFolder
from bertaccum.runs.record import read_record
from bertaccum.system.atomic import settle
from bertaccum.system.stopping import StoppedEarlyError
from bertaccum.training.checkpoints import (
    CUT,
    Checkpoints,
    Position,
    best_evaluation,
    read_saved,
    state_of,
)
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
from bertaccum.training.resume import check_logs, deciding_options, inputs_of
from bertaccum.training.run_setup import RunSetup
from bertaccum.training.tensorboard_log import TensorBoardLog
from bertaccum.training.updater import Updater
from bertaccum.version import __version__
from data_prep.tables.tsv import read_tsv


class Run:
    """A run in progress.

    Args:
      setup: What the run consists of.
      folder: Run folder to write to.
    """

    def __init__(self, setup: RunSetup, folder: RunFolder) -> None:
        self.setup, self.task, self.model = setup, setup.task, setup.model
        self.config, self.inputs, self.folder = setup.config, setup.inputs, folder
        self.topology, self.session = setup.session.topology, setup.session
        self.stopping, self.source = self.session.stopping, self.inputs.source
        self.best_by = str(self.config.best_by)
        self.updater = Updater(setup)
        self.optimizer = self.updater.optimizer
        self.evaluator = DevEvaluator(setup, folder)
        self.checkpoints = Checkpoints(self.model, self.optimizer, folder, self.config.keep)
        self.position = Position(folder.mark)
        self.tensorboard: TensorBoardLog | None = None

    def create_folder(self, named: Iterable[str]) -> None:
        """Create the run folder with the run's configuration and inputs.

        Args:
          named: Names of the options that the user set.
        """
        stores = {"train.tsv": self.setup.train_store, "dev.tsv": self.setup.dev_store}
        inputs = inputs_of(self.inputs) | {
            "mark": self.position.run,
            "options": deciding_options(self.config),
            "cutting": self.setup.compilation.deciding(),
            "rows": {name: len(store) for name, store in stores.items()},
            "truncation": {
                name: dataclasses.asdict(store.truncation)
                for name, store in stores.items()
                if store.truncation
            },
            "named": sorted(set(named) - {"out"}),
        }
        self.folder.create(self.config, inputs)

    def restore(self, path: Path, position: Position) -> None:
        """Restore a checkpoint, and the model that was best when the checkpoint was saved.

        Logs are changed last, so an error leaves them as they are.
        """
        interval = self.setup.updates_between_evaluations
        check_logs(self.folder, position.update, position.evaluated, interval)
        settle(self.folder.best)
        best, found = position.best, best_evaluation(self.folder)
        if best is not None and best != found:
            of_best = state_of(self.folder.checkpoints, best.update)
            read_saved(of_best, position.run)
            self.checkpoints.restore(of_best)
            if found is not None:
                self.folder.set_aside_best(found.update)
            self.evaluator.save(best)
        self.checkpoints.restore(path)
        if best is None and found is not None:
            self.folder.set_aside_best(found.update)
        self.folder.rewind(position.update, position.evaluated, position.shrinkings)

    def start_over(self) -> None:
        """Undo everything, before the first checkpoint; a best model is kept under another name."""
        settle(self.folder.best)
        if (found := best_evaluation(self.folder)) is not None:
            self.folder.set_aside_best(found.update)
        self.folder.rewind(0, 0)

    def share_state(self, position: Position) -> None:
        """Copy the chief's restored state to all workers, and continue from `position`."""
        if self.topology.workers > 1:
            self.checkpoints.share(self.topology)
        self.position, self.updater.noise.sums = position, position.noise

    def events(self) -> Iterator[Event]:
        try:
            yield from self._events()
        finally:
            self.updater.close()
            # Otherwise, the callback for signals would keep this run's model in memory.
            self.stopping.call_on_signal(lambda: None)
            if self.tensorboard is not None:
                self.tensorboard.close()

    def _events(self) -> Iterator[Event]:
        self._write_plan()
        if self.topology.chief:
            record = read_record(self.folder.path)
            self.tensorboard = TensorBoardLog(self.folder.tensorboard, record)
        yield self._started()
        self.started = time.perf_counter() - self.position.total_seconds
        self.saved, self.saved_at = self.position.update, time.monotonic()
        self.stopping.call_on_signal(self.updater.stop)
        try:
            while self._evaluation_is_due() or self._updates_are_left():
                yield from self._next()
            self._save()
            # This last evaluation is off schedule, so it is not saved with the checkpoint.
            last = self.position.last
            if last is None or self.position.evaluated < self.position.update:
                yield (last := self._evaluate())
        except StoppedEarlyError:
            self._save()
            # Another worker may have received the signal.
            number = self.stopping.requested or signal.SIGTERM
            yield Stopped(self.position.update, number, self.folder.path, self.topology.workers)
            return
        self.position.total_seconds = time.perf_counter() - self.started
        summary = self._summary(last)
        self.folder.write_json(self.folder.summary, summary)
        yield Finished(summary)

    def _next(self) -> Iterator[Event]:
        """Run one evaluation or one update, then save a checkpoint if one is due."""
        if self._evaluation_is_due():
            evaluated = self._evaluate()
            self.position.last = evaluated
            if evaluated.best:
                self.position.best = evaluated
                self._save()
            yield evaluated
        else:
            yield from self._update()
        # The evaluation that is due comes first, because the checkpoint records the best one. A
        # checkpoint whose time has come while an update runs is saved after that update.
        running = self.updater.is_running
        if not running and self._saving_is_due() and not self._evaluation_is_due():
            self._save()

    def _updates_are_left(self) -> bool:
        return self.position.update < self.setup.last_update and not self._patience_is_over()

    def _how_to_go_on(self) -> str:
        if self.position.update < self.setup.last_update:
            return "raise `patience`, or start a new run"
        ends_early = self.setup.last_update < self.setup.scheduled_updates
        return "raise `max_updates`, or start a new run" if ends_early else "start a new run"

    def _patience_is_over(self) -> bool:
        best, last, patience = self.position.best, self.position.last, self.config.patience
        if patience is None or best is None or last is None:
            return False
        return last.update - best.update >= patience * self.setup.updates_between_evaluations

    def _evaluation_is_due(self) -> bool:
        now = self.position.update
        return now > self.position.evaluated and now % self.setup.updates_between_evaluations == 0

    def _saving_is_due(self) -> bool:
        if not self.topology.chief:
            return False
        updates, seconds = save_interval(self.config.save_every)
        if updates is not None:
            return self.position.update - self.saved >= updates
        assert seconds is not None
        return time.monotonic() - self.saved_at >= seconds

    def _save(self) -> None:
        # Do not save a checkpoint of the same update again. The saved one lacks at most one
        # evaluation, which is repeated when the run is resumed.
        if self.saved == self.position.update or not self.topology.chief:
            return
        self.position.total_seconds = time.perf_counter() - self.started
        with self.stopping.saving():
            self.folder.sync_logs()
            self.checkpoints.save(self.position, self.updater.batch)
        self.saved, self.saved_at = self.position.update, time.monotonic()

    def _started(self) -> Started:
        vocabulary = self.source.vocabulary
        assert vocabulary is not None
        return Started(
            folder=self.folder.path,
            model=self.source.name,
            pretrained=self.source.checkpoint is not None,
            parameters=self.model.count_params(),
            train_examples=len(self.setup.train_store),
            dev_examples=len(self.setup.dev_store),
            plan=self.updater.batch,
            why=self.setup.planned.why,
            updates=self.setup.last_update,
            done=self.position.update,
            over="" if self._updates_are_left() else self._how_to_go_on(),
            worker=self.topology.worker,
            pretrained_pooler=self.source.has_pooler,
            pretrained_run=self.source.name if self.source.of_run else None,
            pretrained_head=self.inputs.head is not None,
            best_by=self.best_by,
            truncation=self.setup.train_store.truncation,
            doubt=vocabulary.doubt(),
        )

    def _update(self) -> Iterator[Event]:
        """Run one update and yield its events."""
        # With several workers, the update itself makes all of them stop together.
        free = self.topology.workers == 1 and not self.updater.is_running
        if free and self.session.asked_to_stop():
            raise StoppedEarlyError
        for event in self.updater.run(self.position.update, self._goes_on):
            self._log(self.folder.metrics, event)
            if isinstance(event, OutOfMemory):
                self.position.shrinkings += 1
                self._write_plan()
            elif self._has_diverged():
                numbers = read_tsv(self.inputs.tsvs[0])["row"].to_numpy()
                in_a_row = self.position.nonfinite_in_a_row
                raise self.updater.not_finite(event.update, in_a_row, numbers)
            yield event

    def _goes_on(self, updated: Updated) -> bool:
        """Count an update, and return whether the next one may start before this one is logged.

        Workers may differ in the result: whatever it is, their next reduction is that of the next
        update, because only the chief saves checkpoints, and evaluations are due on all workers.
        """
        self._count(updated)
        pause = self._evaluation_is_due() or self._saving_is_due() or self._has_diverged()
        return self._updates_are_left() and not pause and not self.session.asked_to_stop()

    def _has_diverged(self) -> bool:
        return self.position.nonfinite_in_a_row >= self.config.max_nonfinite

    def _count(self, updated: Updated) -> None:
        position = self.position
        position.update, position.loss = updated.update, updated.loss
        position.examples += updated.examples
        position.noise = self.updater.noise.sums
        position.seconds += updated.seconds
        peaks = filter(None, (updated.peak_memory_bytes, position.peak_memory_bytes))
        position.peak_memory_bytes = max(peaks, default=None)
        position.nonfinite_in_a_row = position.nonfinite_in_a_row + 1 if updated.skipped else 0

    def _log(self, path: Path, event: Updated | Evaluated | OutOfMemory) -> None:
        values = event.record() if isinstance(event, Evaluated) else dataclasses.asdict(event)
        line = {"kind": event.kind} | values
        self.folder.append(path, line)
        if self.tensorboard is not None:
            self.tensorboard.add(line)

    def _write_plan(self) -> None:
        """Write the current plan, the learned memory limits and the run's length to plan.json."""
        now = dataclasses.asdict(self.updater.batch) | {"updates": self.setup.last_update}
        learned = {"learned_limits": learned_limits(self.setup.request)}
        values = self.setup.planned.values | now | learned
        self.folder.write_json(self.folder.plan, values)

    def _evaluate(self) -> Evaluated:
        evaluated = self.evaluator.evaluate(self.position.update, self.position.best)
        self._log(self.folder.eval, evaluated)
        return evaluated

    def _summary(self, last: Evaluated) -> dict[str, Any]:
        now, best = self.position, last if last.best else self.position.best
        assert best is not None
        first = self.task.metrics[0]
        return {
            "updates": now.update,
            "epochs": math.ceil(now.update / self.setup.updates_per_epoch),
            "examples": now.examples,
            "final_loss": now.loss,
            "best_by": self.best_by,
            "best_metric": metric_of(best.record(), self.best_by),
            "best_update": best.update,
            # These metrics are those of the best checkpoint, whichever metric selected it.
            **{f"best_dev_{metric}": best.scores[metric] for metric in self.task.metrics},
            f"final_dev_{first}": last.scores[first],
            "best_evaluation": best.record(),
            "last_evaluation": last.record(),
            "stopped_early": now.update < self.setup.last_update,
            "skipped_windows": int(self.optimizer.skipped_windows.numpy()),
            "training_seconds": round(now.seconds, 3),
            "total_seconds": round(now.total_seconds, 3),
            "examples_per_second": round(now.examples / now.seconds, 3) if now.seconds else None,
            "peak_memory_bytes": now.peak_memory_bytes,
            "out_of_memory": now.shrinkings,
            **{name: getattr(self.updater.batch, name) for name in CUT},
            "model": self.source.name,
            "pretrained": self.source.checkpoint is not None,
            "parameters": self.model.count_params(),
            "versions": {
                "bertaccum": __version__,
                "tensorflow": tf.__version__,
                "tf_keras": tf_keras.__version__,
            },
        }
