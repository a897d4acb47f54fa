"""A run's updates, one after the other, cut as memory allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from bertaccum.bert.encoder import set_recompute
from bertaccum.data.windows import Window, by_length, make_window, window_rows
from bertaccum.errors import RunError
from bertaccum.planning.batch_plan import Plan, make_plan
from bertaccum.planning.device_memory import peak_memory_bytes, reset_peak_memory
from bertaccum.planning.planner import remember_out_of_memory
from bertaccum.planning.window_cuts import Cut, make_cut
from bertaccum.stopping import StoppedEarlyError
from bertaccum.training.checkpoints import Position
from bertaccum.training.events import OutOfMemory, Updated
from bertaccum.training.nonfinite import not_finite
from bertaccum.training.recipe import make_optimizer
from bertaccum.training.replicated_step import SharedUpdate
from bertaccum.training.run_plan import Parts
from bertaccum.training.step import make_update


class Updates:
    """Makes any update of a run; where memory runs out, cuts what comes smaller, for good.

    Args:
      parts: of the run.
      scheduled: updates that the learning rate's schedule is for.
    """

    def __init__(self, parts: Parts, scheduled: int) -> None:
        self._parts, self._topology = parts, parts.topology
        self._config, self._model, self._store = parts.config, parts.model, parts.train_store
        assert isinstance(self._config.micro_batch, int)
        self.plan = self._plan(self._config.micro_batch, self._config.recompute)
        with self._topology.strategy.scope():
            # Replicas always accumulate, so that a lack of memory is each one's own.
            steps = max(self.plan.accumulation_steps, min(self._topology.replicas, 2))
            self.optimizer = make_optimizer(self._config, scheduled, steps)
        with tf.device("CPU"):
            self._stopped = tf.Variable(False, trainable=False)
        self._update = self._make_update()
        # Of the update that was made last: its rows, this worker's shares and their losses.
        self._last: tuple[np.ndarray, list[Window], list[list[float]]]

    def stop(self) -> None:
        """Has the update under way begin no further micro-batch; for another thread to call."""
        self._stopped.assign(True)

    def run(self, number: int) -> Iterator[OutOfMemory | Updated]:
        """Makes update `number`, counted from 0.

        Yields:
          `OutOfMemory` each time that it did not fit, and `Updated` at the end.

        Raises:
          StoppedEarlyError: a worker was asked to stop; nothing has changed.
          RunError: it does not fit.
        """
        reset_peak_memory()
        start = time.perf_counter()
        config, store = self._config, self._store
        epoch, rows = window_rows(number, len(store), config.target_batch, config.seed)
        while True:
            windows = self._shares(rows)
            try:
                results = self._update(windows)
                break
            except tf.errors.ResourceExhaustedError:
                yield self._shrink(number + 1)
        if not results["finished"]:
            raise StoppedEarlyError
        seconds = time.perf_counter() - start
        self._last = rows, windows, results["losses"]
        yield Updated(
            update=number + 1,
            epoch=epoch + 1,
            loss=results["loss"],
            examples=len(rows),
            micro_steps=int(results["micro_steps"]),
            padded_tokens=int(results["padded_tokens"]),
            tokens=int(store.lengths(rows).sum()),
            learning_rate=results["learning_rate"],
            grad_norm=results["grad_norm"],
            seconds=seconds,
            examples_per_second=len(rows) / seconds,
            skipped=not results["applied"],
            peak_memory_bytes=peak_memory_bytes(),
        )

    def not_finite(self, position: Position) -> RunError:
        """Says where the last update's numbers ceased to be numbers."""
        rows, windows, losses = self._last
        rows = by_length(self._store, rows)
        tsv, precision = self._parts.subject.tsvs[0], self._config.precision
        in_a_row = position.nonfinite_in_a_row
        return not_finite(position.update, in_a_row, tsv, rows, windows, losses, precision)

    def _plan(self, micro_batch: int, recompute: str) -> Plan:
        config, replicas = self._config, self._topology.replicas
        return make_plan(config.target_batch, micro_batch, recompute, config.cut, replicas)

    def _make_update(self) -> Callable[[list[Window]], dict[str, Any]]:
        """A function of the shares of this worker's replicas."""
        config, topology = self._config, self._topology
        made_of = self._model, self.optimizer, config.seed
        if topology.replicas > 1:
            watch, stream = self._parts.watch, config.dropout_stream
            return SharedUpdate(*made_of, stream, self._stopped, topology, watch)
        accumulate = self.plan.accumulation_steps > 1
        alone = make_update(*made_of, accumulate, self._stopped, config.dropout_stream)

        def update(windows: list[Window]) -> dict[str, Any]:
            (window,) = windows
            results = alone(window)
            sizes = {key: getattr(window, key) for key in ("micro_steps", "padded_tokens")}
            return results | sizes | {"losses": [results["losses"]]}

        return update

    def _shares(self, rows: np.ndarray) -> list[Window]:
        """The windows of this worker's replicas, of which each is a share of the rows."""
        first, replicas = self._topology.first_replica, self._topology.replicas
        own = range(first, first + self._topology.local_replicas)
        size, cut = self.plan.micro_batch, self._cut()
        return [make_window(self._store, rows, size, cut, r, replicas) for r in own]

    def _cut(self) -> Cut:
        # One micro-step has no accumulators, and stays one.
        alone = self.plan.accumulation_steps == 1 and self._topology.replicas == 1
        return make_cut("count" if alone else self.plan.cut, self._store.longest)

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
        with self._topology.strategy.scope():
            self.optimizer.drop()
        failed, kind = self.plan.micro_batch, self.plan.recompute
        remember_out_of_memory(self._parts.subject, failed, kind)
        if failed == 1 and kind == "layer":
            raise RunError(
                f"out of memory in update {update}, with one example at a time and recomputation",
                "lower --max-seq-length, choose a smaller --model, or raise --memory-limit",
            )
        if failed == 1:
            set_recompute(self._model.checkpoint_items["encoder"], True)
            kind = "layer"
        accumulated = self.plan.accumulation_steps > 1
        self.plan = self._plan(max(failed // 2, 1), kind)
        if failed == 1 or not accumulated:
            self._update = self._make_update()
        return OutOfMemory(update, failed, self.plan.micro_batch, kind)
