"""A run under way: windows in, updates out, its state and the best model kept on the way."""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from bertaccum import __version__
from bertaccum.bert.recompute import recompute_layers
from bertaccum.config import EvalConfig, TrainConfig, save_interval
from bertaccum.distribution.topology import Topology
from bertaccum.distribution.watch import Watch
from bertaccum.errors import RunError
from bertaccum.memory.cut import Cut, make_cut
from bertaccum.memory.device import peak_memory_bytes, reset_peak_memory
from bertaccum.memory.plan import Plan, make_plan
from bertaccum.stopping import Stopping
from bertaccum.training.checkpoints import (
    Checkpoints,
    Position,
    best_evaluation,
    read_position,
    save_best,
    state_of,
)
from bertaccum.training.dataset import TokenStore
from bertaccum.training.evaluation import accuracy, mean_loss, predict_store
from bertaccum.training.events import (
    Evaluated,
    Event,
    Finished,
    OutOfMemory,
    Started,
    Stopped,
    Updated,
)
from bertaccum.training.nonfinite import not_finite
from bertaccum.training.planner import Subject, learned_limits, remember_out_of_memory
from bertaccum.training.recipe import make_optimizer
from bertaccum.training.resuming import inputs_of, resolved_config
from bertaccum.training.run_folder import ModelFiles, RunFolder
from bertaccum.training.shared_update import SharedUpdate
from bertaccum.training.update import make_predict, make_update
from bertaccum.training.windows import (
    Window,
    by_length,
    make_window,
    updates_per_epoch,
    window_rows,
)


@dataclass(frozen=True)
class Parts:
    """What a run needs; the configuration has the plan in it."""

    config: TrainConfig
    subject: Subject
    planned: dict[str, Any]
    model: tf_keras.Model
    train_store: TokenStore
    dev_store: TokenStore
    topology: Topology
    watch: Watch


class _StoppedEarlyError(Exception):
    """Somebody asked the run to stop, and nothing of what was under way is kept."""


class Run:
    """One run under way: its parts, and how far it has come."""

    def __init__(self, parts: Parts, folder: RunFolder, stopping: Stopping) -> None:
        config, subject, model = parts.config, parts.subject, parts.model
        self.topology, self.watch = parts.topology, parts.watch
        self.config, self.subject, self.model, self.folder = config, subject, model, folder
        self.train_store, self.dev_store = parts.train_store, parts.dev_store
        self.source, self.stopping = subject.source, stopping
        self.files = ModelFiles(self.source.encoder, self.source.vocabulary, subject.labels)
        self.planned = parts.planned
        assert isinstance(config.micro_batch, int)
        self.plan = self._plan(config.micro_batch, config.recompute)
        self.per_epoch = per_epoch = updates_per_epoch(len(self.train_store), config.target_batch)
        # Rounded first: 0.1 epochs of 30 updates are 3, though 0.1 * 30 is a little more.
        scheduled = max(math.ceil(round(config.epochs * per_epoch, 6)), 1)
        # The schedule does not know of --max-updates: stopping early changes no update.
        self.updates = min(scheduled, config.max_updates or scheduled)
        self.eval_every = config.eval_every or per_epoch
        with self.topology.strategy.scope():
            # Replicas always accumulate, so that a lack of memory is each one's own.
            steps = max(self.plan.accumulation_steps, min(self.topology.replicas, 2))
            self.optimizer = make_optimizer(config, scheduled, steps)
        with tf.device("CPU"):
            self.stopped = tf.Variable(False, trainable=False)
        self.update = self._make_update()
        self.predict = make_predict(model)
        self.eval_batch = EvalConfig().batch
        self.checkpoints = Checkpoints(model, self.optimizer, folder, config.keep)
        self.position = Position(folder.mark, config.micro_batch, config.recompute)
        self.save_updates, self.save_seconds = save_interval(config.save_every)

    def create_folder(self) -> None:
        """Makes the run's folder, with all that decides it."""
        inputs = inputs_of(self.subject) | {"mark": self.position.run}
        config = resolved_config(self.config, self.source.name, self.eval_every)
        self.folder.create(config, inputs)

    def restore(self, path: Path, position: Position) -> None:
        """Goes back to a saved state, and to what was the best model then."""
        self.folder.rewind(position.update, position.evaluated)
        best = position.best
        if best is not None and best != best_evaluation(self.folder):
            of_best = state_of(self.folder.checkpoints, best.update)
            read_position(of_best, position.run)
            self.checkpoints.restore(of_best)
            save_best(self.model, self.files, best, self.folder)
        self.checkpoints.restore(path)

    def share_state(self, position: Position) -> None:
        """Gives all workers the state that the chief went back to."""
        if self.topology.workers > 1:
            self.checkpoints.share(self.topology)
        self.position = dataclasses.replace(
            position, micro_batch=self.plan.micro_batch, recompute=self.plan.recompute
        )

    def events(self) -> Iterator[Event]:
        self._write_plan()
        yield self._started()
        self.started = time.perf_counter() - self.position.total_seconds
        self.saved, self.saved_at = self.position.update, time.monotonic()
        self.stopping.heed(lambda: self.stopped.assign(True))
        try:
            while self.position.update < self.updates or self._evaluation_is_due():
                yield from self._next()
            self._save()
            # Where it would not have been evaluated had it gone on, the state does not know of it.
            last = self.position.last
            if last is None or self.position.evaluated < self.position.update:
                yield (last := self._evaluate())
        except _StoppedEarlyError:
            self._save()
            # Another worker may have been asked.
            number = self.stopping.requested or signal.SIGTERM
            yield Stopped(self.position.update, number, self.folder.path)
            return
        self.position.total_seconds = time.perf_counter() - self.started
        summary = self._summary(last)
        self.folder.write_json(self.folder.summary, summary)
        yield Finished(summary)

    def _next(self) -> Iterator[Event]:
        """One evaluation or one update; saves where that is due."""
        if self._evaluation_is_due():
            evaluated = self._evaluate()
            self.position.last = evaluated
            if evaluated.best:
                self.position.best = evaluated
                self._save()
            yield evaluated
        else:
            yield (yield from self._run_update(self.position.update))
        if self._saving_is_due():
            self._save()

    def _evaluation_is_due(self) -> bool:
        now = self.position.update
        return now > self.position.evaluated and now % self.eval_every == 0

    def _saving_is_due(self) -> bool:
        if self.save_updates is not None:
            return self.position.update - self.saved >= self.save_updates
        assert self.save_seconds is not None
        return time.monotonic() - self.saved_at >= self.save_seconds

    def _save(self) -> None:
        # A state that is there is not touched again: what it does not know of is an evaluation,
        # which resuming repeats.
        if self.saved == self.position.update or not self.topology.chief:
            return
        self.position.total_seconds = time.perf_counter() - self.started
        with self.stopping.saving():
            self.folder.sync_logs()
            self.checkpoints.save(self.position)
        self.saved, self.saved_at = self.position.update, time.monotonic()

    def _started(self) -> Started:
        return Started(
            folder=self.folder.path,
            model=self.source.name,
            pretrained=self.source.checkpoint is not None,
            parameters=self.model.count_params(),
            train_examples=len(self.train_store),
            dev_examples=len(self.dev_store),
            plan=self.plan,
            why=self.planned["why"],
            updates=self.updates,
            done=self.position.update,
            worker=self.topology.worker,
        )

    def _plan(self, micro_batch: int, recompute: str) -> Plan:
        config, replicas = self.config, self.topology.replicas
        return make_plan(config.target_batch, micro_batch, recompute, config.cut, replicas)

    def _make_update(self) -> Callable[[list[Window]], dict[str, Any]]:
        """A function of the shares of this worker's replicas."""
        config, several = self.config, self.topology.replicas > 1
        parts = self.model, self.optimizer, config.seed
        if several:
            return SharedUpdate(
                *parts, config.dropout_stream, self.stopped, self.topology, self.watch
            )
        accumulate = self.plan.accumulation_steps > 1
        alone = make_update(*parts, accumulate, self.stopped, config.dropout_stream)

        def update(windows: list[Window]) -> dict[str, Any]:
            results = alone(windows[0])
            return results | _sizes(windows) | {"losses": [results["losses"]]}

        return update

    def _run_update(self, number: int) -> Generator[Event, None, Updated]:
        self._stop_if_asked()
        reset_peak_memory()
        start = time.perf_counter()
        config = self.config
        epoch, rows = window_rows(number, len(self.train_store), config.target_batch, config.seed)
        while True:
            windows = self._shares(rows)
            try:
                results = self.update(windows)
                if not results["finished"]:
                    raise _StoppedEarlyError
                break
            except tf.errors.ResourceExhaustedError:
                yield self._shrink(number + 1)
        seconds = time.perf_counter() - start
        peak = peak_memory_bytes()
        updated = Updated(
            update=number + 1,
            epoch=epoch + 1,
            loss=results["loss"],
            examples=len(rows),
            micro_steps=int(results["micro_steps"]),
            padded_tokens=int(results["padded_tokens"]),
            tokens=int(self.train_store.lengths(rows).sum()),
            learning_rate=results["learning_rate"],
            grad_norm=results["grad_norm"],
            seconds=seconds,
            examples_per_second=len(rows) / seconds,
            skipped=not results["applied"],
            peak_memory_bytes=peak,
        )
        self.folder.append(self.folder.metrics, dataclasses.asdict(updated))
        self._count(updated)
        if self.position.nonfinite_in_a_row >= config.max_nonfinite:
            rows = by_length(self.train_store, rows)
            raise not_finite(self.position, self.subject.tsvs[0], rows, windows, results["losses"])
        return updated

    def _shares(self, rows: np.ndarray) -> list[Window]:
        """The windows of this worker's replicas, of which each is a share of the rows."""
        first, replicas = self.topology.first_replica, self.topology.replicas
        own = range(first, first + self.topology.local_replicas)
        size, cut = self.plan.micro_batch, self._cut()
        return [make_window(self.train_store, rows, size, cut, r, replicas) for r in own]

    def _count(self, updated: Updated) -> None:
        position = self.position
        position.update, position.loss = updated.update, updated.loss
        position.examples += updated.examples
        position.seconds += updated.seconds
        peaks = filter(None, (updated.peak_memory_bytes, position.peak_memory_bytes))
        position.peak_memory_bytes = max(peaks, default=None)
        position.nonfinite_in_a_row = position.nonfinite_in_a_row + 1 if updated.skipped else 0

    def _cut(self) -> Cut:
        # One micro-step has no accumulators, and stays one.
        alone = self.plan.accumulation_steps == 1 and self.topology.replicas == 1
        kind = "count" if alone else self.plan.cut
        return make_cut(kind, self.train_store.longest)

    def _shrink(self, update: int) -> OutOfMemory:
        """After running out of memory: forgets the window and cuts what comes smaller, for good.

        Raises:
          RunError: it cannot be cut smaller, or weights have been changed already.
        """
        if self.optimizer.half_updated.numpy():
            raise RunError(
                f"out of memory while the weights of update {update} were being changed",
                "lower --micro-batch or raise --memory-limit, and go on with --resume",
            )
        with self.topology.strategy.scope():
            self.optimizer.drop()
        failed, kind = self.plan.micro_batch, self.plan.recompute
        remember_out_of_memory(self.subject, failed, kind)
        if failed == 1 and kind == "layer":
            raise RunError(
                f"out of memory in update {update}, with one example at a time and recomputation",
                "lower --max-seq-length, choose a smaller --model, or raise --memory-limit",
            )
        if failed == 1:
            recompute_layers(self.model.checkpoint_items["encoder"])
            kind = "layer"
        accumulated = self.plan.accumulation_steps > 1
        smaller = max(failed // 2, 1)
        self.plan = self._plan(smaller, kind)
        if failed == 1 or not accumulated:
            self.update = self._make_update()
        self.position.shrinkings += 1
        self.position.micro_batch, self.position.recompute = smaller, kind
        event = OutOfMemory(update, failed, self.plan.micro_batch, kind)
        self.folder.append(self.folder.metrics, dataclasses.asdict(event))
        self._write_plan()
        return event

    def _write_plan(self) -> None:
        """The plan as it is now, with what has been learned about memory."""
        now = dataclasses.asdict(self.plan)
        values = self.planned | now | {"learned_limits": learned_limits(self.subject)}
        self.folder.write_json(self.folder.plan, values)

    def _stop_if_asked(self, *_: Any) -> None:
        # Several workers stop together, in an update: `SharedUpdate` has all hear of it.
        if self.topology.workers == 1 and self.stopping.requested is not None:
            raise _StoppedEarlyError

    def _evaluate(self) -> Evaluated:
        update = self.position.update
        self.watch.doing(f"evaluating after update {update}")
        # What did not fit once is not tried again.
        logits, self.eval_batch = predict_store(
            self.predict, self.dev_store, self.eval_batch, self._stop_if_asked
        )
        labels = self.dev_store.labels
        score = accuracy(logits, labels)
        # A small dev.tsv gives many ties; among equals the longest trained is the best guess.
        best = self.position.best is None or score >= self.position.best.accuracy
        evaluated = Evaluated(update, score, mean_loss(logits, labels), best)
        if not math.isfinite(evaluated.loss):
            raise RunError(
                f"the loss on dev.tsv is no longer finite at update {update}",
                "try a lower --learning-rate, or --precision mixed_bfloat16 or float32",
            )
        if best and self.topology.chief:
            with self.stopping.saving():
                save_best(self.model, self.files, evaluated, self.folder)
        self.folder.append(self.folder.eval, dataclasses.asdict(evaluated))
        return evaluated

    def _summary(self, last: Evaluated) -> dict[str, Any]:
        now, best = self.position, last if last.best else self.position.best
        assert best is not None
        return {
            "updates": now.update,
            "epochs": math.ceil(now.update / self.per_epoch),
            "examples": now.examples,
            "final_loss": now.loss,
            "final_dev_accuracy": last.accuracy,
            "best_dev_accuracy": best.accuracy,
            "best_update": best.update,
            "skipped_windows": int(self.optimizer.skipped_windows.numpy()),
            "training_seconds": round(now.seconds, 3),
            "total_seconds": round(now.total_seconds, 3),
            "examples_per_second": round(now.examples / now.seconds, 3),
            "peak_memory_bytes": now.peak_memory_bytes,
            "out_of_memory": now.shrinkings,
            "micro_batch": self.plan.micro_batch,
            "recompute": self.plan.recompute,
            "model": self.source.name,
            "pretrained": self.source.checkpoint is not None,
            "parameters": self.model.count_params(),
            "versions": {
                "bertaccum": __version__,
                "tensorflow": tf.__version__,
                "tf_keras": tf_keras.__version__,
            },
        }


def _sizes(windows: list[Window]) -> dict[str, int]:
    return {
        "micro_steps": sum(window.micro_steps for window in windows),
        "padded_tokens": sum(window.padded_tokens for window in windows),
    }
