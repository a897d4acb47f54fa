"""The updates of a run, with micro-batches that shrink when memory runs out."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from bertaccum.accumulation.window import WindowOptimizer
from bertaccum.bert.encoder import set_recompute
from bertaccum.data.windows import Window, by_length, empty_window, make_window, window_rows
from bertaccum.distribution.device_memory import limits_the_host
from bertaccum.errors import RunError
from bertaccum.options.offload_rungs import offloads_sums
from bertaccum.planning.cost import check_host_memory
from bertaccum.planning.plan import Saving
from bertaccum.planning.planner import remember_out_of_memory
from bertaccum.system.stopping import StoppedEarlyError
from bertaccum.training.events import OutOfMemory, Updated
from bertaccum.training.noise_scale import NoiseMeter, gradient_products
from bertaccum.training.nonfinite import not_finite
from bertaccum.training.recipe import make_optimizer, offload
from bertaccum.training.run_setup import RunSetup
from bertaccum.training.step import Trainee, make_shared_update, make_update
from bertaccum.training.update_thread import UpdateThread


@dataclass(frozen=True)
class _Prepared:
    """A window that is ready for its update.

    Args:
      number: Number of the update, counted from 0.
      epoch: Number of the epoch, counted from 0.
      rows: Row numbers of the window's examples in the token store.
      windows: The shares of this worker's replicas.
    """

    number: int
    epoch: int
    rows: np.ndarray
    windows: list[Window]


class Updater:
    """The updates of a run; micro-batches become smaller when memory runs out.

    Another thread runs the updates. Meanwhile, the caller prepares the next window, and logs the
    update before. Call `close` at the end.

    The attribute `batch` is the only copy of the current batch plan, and `noise` that of the sums
    from which the noise scale is computed.

    Args:
      setup: What the run consists of.
    """

    def __init__(self, setup: RunSetup) -> None:
        self._setup, self._task, self._config = setup, setup.task, setup.config
        self._model, self._store = setup.model, setup.train_store
        self._topology, self._watch = setup.session.topology, setup.session.watch
        first = Saving(self._config.recompute, self._config.offload)
        self.batch = self._setup.batch(int(self._config.micro_batch), first)
        self.noise = NoiseMeter(len(self._store), self._config.target_batch)
        self.optimizer = self._make_optimizer()
        with tf.device("CPU"):
            self._stopped = tf.Variable(False, trainable=False)
        self._update, self._thread = self._make_update(), UpdateThread()
        # On a CPU with a memory limit, an update may use all memory, and TensorFlow crashes if it
        # cannot allocate the tensors of a window or of a log.
        self._overlaps = not limits_the_host()
        # The windows that were last prepared, last given to the thread, and last updated from, and
        # the losses of the latter's micro-batches.
        self._prepared: _Prepared | None = None
        self._started: _Prepared
        self._last: tuple[_Prepared, list[list[float]]]

    @property
    def is_running(self) -> bool:
        """Whether an update has started whose events `run` has not yet yielded."""
        return self._thread.is_running

    def stop(self) -> None:
        """Stop the current update before its next micro-batch. Any thread may call this method."""
        self._stopped.assign(True)

    def close(self) -> None:
        """Stop and wait for the update in progress, without applying it.

        With several workers, it is not stopped, because the others would stop as if by a signal.
        """
        if self._topology.workers == 1:
            self.stop()
        self._thread.close()

    def run(
        self, number: int, goes_on: Callable[[Updated], bool]
    ) -> Iterator[OutOfMemory | Updated]:
        """Run one update, or wait for it if it was started by the call for the update before.

        Args:
          number: Number of the update, counted from 0.
          goes_on: Called with the `Updated` that is about to be yielded. If it returns True, the
            next update starts immediately, unless the host's memory is limited.

        Yields:
          `OutOfMemory` each time the update runs out of memory, and `Updated` at the end.

        Raises:
          StoppedEarlyError: A worker was asked to stop; the update was not applied.
          RunError: The update does not fit in memory.
        """
        if not self.is_running:
            self._start(number)
        while True:
            self._prepare(number + 1)
            try:
                results = self._thread.result()
                break
            except tf.errors.ResourceExhaustedError:
                yield self._shrink(number + 1)
            self._start(number, again=True)
        if not results["finished"]:
            raise StoppedEarlyError
        self._last = self._started, results["losses"]
        updated = self._updated(self._started, results)
        if goes_on(updated) and self._overlaps:
            self._start(number + 1)
        yield updated

    def _prepare(self, number: int) -> _Prepared:
        """Return the window of an update, which is made unless it was the last one made.

        If an update runs out of memory after the next window was made, both are made again, by the
        new batch plan.
        """
        made = self._prepared
        if made is None or made.number != number:
            config, examples = self._config, len(self._store)
            epoch, rows = window_rows(number, examples, config.target_batch, config.seed)
            made = _Prepared(number, epoch, rows, self._shares(rows))
            for window in made.windows if self._overlaps else ():
                _ = window.tensors  # Convert the arrays now, not when the update starts.
            self._prepared = made
        return made

    def _start(self, number: int, again: bool = False) -> None:
        self._started = self._prepare(number)
        self._thread.start(self._update, self._started.windows, again)

    def _updated(self, window: _Prepared, results: dict[str, Any]) -> Updated:
        """Return the event of an update that has just ended."""
        number, rows, seconds = window.number, window.rows, self._thread.seconds
        return Updated(
            update=number + 1,
            epoch=window.epoch + 1,
            loss=results["loss"],
            examples=len(rows),
            micro_steps=int(results["micro_steps"]),
            padded_tokens=int(results["padded_tokens"]),
            tokens=int(self._store.lengths(rows).sum()),
            learning_rate=results["learning_rate"],
            grad_norm=results["grad_norm"],
            seconds=seconds,
            examples_per_second=len(rows) / seconds,
            skipped=not results["applied"],
            peak_memory_bytes=self._thread.peak_memory_bytes,
            **self.noise.add(number, self._store.weights[rows], results),
        )

    def not_finite(self, update: int, in_a_row: int, numbers: np.ndarray) -> RunError:
        """Return the error for too many consecutive updates whose loss or gradient is not finite.

        Args:
          update: Number of the last of these updates, counted from 1.
          in_a_row: Number of these updates.
          numbers: Row number in train.tsv of each example in the token store, [examples] int.
        """
        window, losses = self._last
        rows, precision = by_length(self._store, window.rows), self._config.precision
        return not_finite(update, in_a_row, rows, window.windows, losses, numbers, precision)

    def _make_optimizer(self) -> WindowOptimizer:
        """Return an optimizer with its state; offload more if this does not fit in memory."""
        while True:
            offload = self.batch.offload
            self._check_host_memory(offload)
            config = dataclasses.replace(self._config, offload=offload)
            with suppress(tf.errors.ResourceExhaustedError), self._topology.strategy.scope():
                steps = 2 if self.batch.accumulates else 1
                setup = self._setup
                optimizer = make_optimizer(config, setup.scheduled_updates, steps, setup.schedule)
                variables = self._model.trainable_variables
                optimizer.build(variables)
                if (wanted := self._config.noise_scale) != "none":
                    optimizer.observer, names = gradient_products(variables, wanted == "groups")
                    self.noise.names = names
                return optimizer
            gc.collect()
            saving = self.batch.saving.offloading_more()
            if saving is None or self._topology.workers > 1:
                raise RunError(
                    "the optimizer's state does not fit in memory",
                    "raise `memory_limit` or choose a smaller `model`"
                    if saving is None
                    else f"set `offload` {saving.offload}, or raise `memory_limit`",
                )
            self.batch = self._setup.batch(self.batch.micro_batch, saving)

    def _make_update(self) -> Callable[[list[Window]], dict[str, Any]]:
        """Return a function that runs one update, given the shares of this worker's replicas."""
        self._compiled: set[tuple[int, int]] = set()
        seed, stream = self._config.seed, self._config.dropout_stream
        made_of = self._task, self._model, self.optimizer, seed
        if self._topology.replicas > 1:
            trainee = Trainee(*made_of, stream, bool(self.batch.shapes))
            return make_shared_update(trainee, self._stopped, self._topology, self._watch)
        compile = bool(self.batch.shapes)
        alone = make_update(*made_of, self.batch.accumulates, self._stopped, stream, compile)

        def update(windows: list[Window]) -> dict[str, Any]:
            (window,) = windows
            self._compile(alone)
            results = alone(window)
            sizes = {key: getattr(window, key) for key in ("micro_steps", "padded_tokens")}
            return results | sizes | {"losses": [results["losses"]]}

        return update

    def _compile(self, update: Callable[[Window], Any]) -> None:
        """Compile an update's steps for the plan's shapes, so that a message can say so.

        With several replicas, the first window of each shape compiles them.
        """
        shapes = self.batch.shapes or ()
        for number, shape in enumerate(shapes):
            if shape not in self._compiled:
                self._setup.session.progress("compiling steps", number + 1, len(shapes))
                update(empty_window(shape, self._store.labels[:0]))
                self.optimizer.drop()
                self._compiled.add(shape)

    def _shares(self, rows: np.ndarray) -> list[Window]:
        """Return the share of a window that each of this worker's replicas processes."""
        first, replicas = self._topology.first_replica, self._topology.replicas
        own = range(first, first + self._topology.local_replicas)
        plan, cut = self.batch, self._setup.cut(self.batch)
        made_of = self._store, rows, plan.micro_batch, cut
        shapes, prices = plan.shapes or (), self._setup.compilation.prices
        return [make_window(*made_of, r, replicas, shapes, prices) for r in own]

    def _shrink(self, update: int) -> OutOfMemory:
        """Drop the current window's sums, and halve the micro-batch size from now on.

        If the size is already 1, recompute the layers instead, then offload the moments, then the
        accumulators.

        Raises:
          RunError: No smaller plan exists, or some weights have already been changed.
        """
        if self.optimizer.half_updated.numpy():
            raise RunError(
                f"out of memory while update {update} was being applied",
                "lower `micro_batch`, `offload` more or raise `memory_limit`, then run again with"
                " `resume`",
            )
        with self._topology.strategy.scope():
            self.optimizer.drop()
        before = self.batch
        remember_out_of_memory(self._setup.request, before.micro_batch, before.saving)
        saving = before.saving if before.micro_batch > 1 else self._save_more(update)
        self.batch = self._setup.batch(max(before.micro_batch // 2, 1), saving)
        anew = bool(before.shapes) != bool(self.batch.shapes) or not before.accumulates
        if saving != before.saving or anew:
            self._update = self._make_update()
        return OutOfMemory(update, before.micro_batch, self.batch.micro_batch, *saving)

    def _check_host_memory(self, what: str) -> None:
        weights = self._model.trainable_variables
        parameters = sum(v.shape.num_elements() for v in weights) * self._topology.local_replicas
        check_host_memory(what, parameters, self._config.offload_folder)

    def _save_more(self, update: int) -> Saving:
        """Recompute or offload more than before."""
        saving = self.batch.saving.more()
        # The workers sum accumulators on the device and on the host in different ways.
        alone = self._topology.workers == 1
        if saving is None or (offloads_sums(saving.offload) and not alone):
            raise RunError(
                f"out of memory in update {update}, with one example at a time"
                f" (`recompute` {self.batch.recompute}, `offload` {self.batch.offload})",
                "lower `max_seq_length`, choose a smaller `model`, or raise `memory_limit`"
                if saving is None
                else f"run again with `resume` and `offload` {saving.offload}",
            )
        self._check_host_memory(saving.offload)
        set_recompute(self._model.checkpoint_items["encoder"], saving.recompute == "layer")
        with self._topology.strategy.scope():
            offload(self.optimizer, saving.offload, self._config.offload_folder)
        return saving
