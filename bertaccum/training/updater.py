"""The updates of a run, with micro-batches that shrink when memory runs out."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import tensorflow as tf

from bertaccum.accumulation.optimizer import AccumulatingOptimizer
from bertaccum.bert.encoder import set_recompute
from bertaccum.data.windows import Window, by_length, empty_window, make_window, window_rows
from bertaccum.errors import RunError
from bertaccum.offload_names import offloads_sums
from bertaccum.planning.batch_plan import Saving
from bertaccum.planning.device_memory import peak_memory_bytes, reset_peak_memory
from bertaccum.planning.offloading import check_host_memory
from bertaccum.planning.plan_request import remember_out_of_memory
from bertaccum.stopping import StoppedEarlyError
from bertaccum.training.events import OutOfMemory, Updated
from bertaccum.training.noise_scale import NoiseMeter, gradient_products
from bertaccum.training.nonfinite import not_finite
from bertaccum.training.recipe import make_optimizer, offload
from bertaccum.training.run_setup import RunSetup
from bertaccum.training.step import Trainee, make_shared_update, make_update


class Updater:
    """The updates of a run; micro-batches become smaller when memory runs out.

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
        self._update = self._make_update()
        # The row numbers of the last window, this worker's shares of the window, and their losses.
        self._last: tuple[np.ndarray, list[Window], list[list[float]]]

    def stop(self) -> None:
        """Stop the current update before its next micro-batch. Any thread may call this method."""
        self._stopped.assign(True)

    def run(self, number: int) -> Iterator[OutOfMemory | Updated]:
        """Run one update.

        Args:
          number: Number of the update, counted from 0.

        Yields:
          `OutOfMemory` each time the update runs out of memory, and `Updated` at the end.

        Raises:
          StoppedEarlyError: A worker was asked to stop; the update was not applied.
          RunError: The update does not fit in memory.
        """
        reset_peak_memory()
        start = time.perf_counter()
        config, store = self._config, self._store
        epoch, rows = window_rows(number, len(store), config.target_batch, config.seed)
        while True:
            windows = self._shares(rows)
            try:
                self._compile()
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
            **self.noise.add(number, store.weights[rows], results),
        )

    def not_finite(self, update: int, in_a_row: int, numbers: np.ndarray) -> RunError:
        """Return the error for too many consecutive updates whose loss or gradient is not finite.

        Args:
          update: Number of the last of these updates, counted from 1.
          in_a_row: Number of these updates.
          numbers: Row number in train.tsv of each example in the token store, [examples] int.
        """
        rows, windows, losses = self._last
        rows, precision = by_length(self._store, rows), self._config.precision
        return not_finite(update, in_a_row, rows, windows, losses, numbers, precision)

    def _make_optimizer(self) -> AccumulatingOptimizer:
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
            results = alone(window)
            sizes = {key: getattr(window, key) for key in ("micro_steps", "padded_tokens")}
            return results | sizes | {"losses": [results["losses"]]}

        return update

    def _compile(self) -> None:
        """Compile the steps for the plan's shapes, so that a message can say what takes the time.

        With several replicas, the first window of each shape compiles them.
        """
        shapes = self.batch.shapes if self._topology.replicas == 1 else ()
        for number, shape in enumerate(shapes):
            if shape not in self._compiled:
                self._setup.session.progress("compiling steps", number, len(shapes))
                self._update([empty_window(shape, self._store.labels[:0])])
                self.optimizer.drop()
                self._compiled.add(shape)

    def _shares(self, rows: np.ndarray) -> list[Window]:
        """Return the share of a window that each of this worker's replicas processes."""
        first, replicas = self._topology.first_replica, self._topology.replicas
        own = range(first, first + self._topology.local_replicas)
        plan, cut = self.batch, self._setup.cut(self.batch)
        made_of = self._store, rows, plan.micro_batch, cut
        shapes, prices = plan.shapes, self._setup.compilation.prices
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
