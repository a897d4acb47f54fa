"""The updates of a run, which a thread computes so that the device does not wait for the host."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from bertaccum.bert.precision import remedy
from bertaccum.data.windows import Window, by_length, empty_window, make_window, window_rows
from bertaccum.distribution.device_memory import (
    limits_the_host,
    peak_memory_bytes,
    reset_peak_memory,
)
from bertaccum.errors import DivergedError
from bertaccum.system.phrases import listed
from bertaccum.system.stopping import StoppedEarlyError
from bertaccum.training.events import OutOfMemory, Updated
from bertaccum.training.memory_recovery import build_optimizer, recover
from bertaccum.training.noise_scale import NoiseMeter
from bertaccum.training.setup import Setup
from bertaccum.training.shared_step import make_shared_update
from bertaccum.training.step import Trainee, make_update

# Maximum number of rows that an error lists.
_NAMED_ROWS = 8
Update: TypeAlias = Callable[[list[Window]], dict[str, Any]]


@dataclass(frozen=True)
class _Prepared:
    """A window that is ready for its update: its rows, and the shares of the local replicas."""

    number: int
    epoch: int
    rows: np.ndarray
    shares: list[Window]


class Updater:
    """The updates of a run, one at a time; call `close` at the end.

    While an update runs, the caller logs the update before, and `wait` prepares the next window.

    Attributes:
      plan: Current batch plan, which changes when memory runs out.
      optimizer: Optimizer of the model.
      noise: Sums from which the noise scale is computed.
      overlaps: Whether an update may start before the one before is logged.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup, self._store = setup, setup.train_store
        first = setup.batch_plan(setup.micro_batch, setup.saving)
        self.optimizer, groups, self.plan = build_optimizer(setup, first)
        self.noise = NoiseMeter(len(self._store), setup.config.target_batch, groups)
        # On a CPU with a memory limit, an update may use all memory, and TensorFlow crashes if it
        # cannot allocate the tensors of a window or of a log.
        self.overlaps = not limits_the_host()
        with tf.device("CPU"):
            self._stopped = tf.Variable(False, trainable=False)
        self._update, self._thread = self._make_update(), UpdateThread()
        self._prepared: _Prepared | None = None
        self._started: _Prepared | None = None
        # Losses of the micro-batches of each local replica in the last update.
        self._losses: list[list[float]] = []

    @property
    def is_running(self) -> bool:
        """Whether an update has started for which `wait` has not been called."""
        return self._thread.is_running

    def start(self, number: int, again: bool = False) -> None:
        """Start an update.

        Args:
          number: Number of the update, counted from 0.
          again: Whether this is another attempt, after the last one ran out of memory.
        """
        self._started = self._prepare(number)
        self._thread.start(self._update, self._started.shares, again)

    def wait(self) -> Updated | OutOfMemory:
        """Prepare the next window, wait for the update in progress, and return its event.

        After `OutOfMemory`, start the update again.

        Raises:
          StoppedEarlyError: A worker was asked to stop; the update was not applied.
          RunError: The update does not fit in memory.
        """
        window = self._started
        assert window is not None
        self._prepare(window.number + 1)
        try:
            results = self._thread.result()
        except tf.errors.ResourceExhaustedError:
            return self._recover(window.number + 1)
        if not results["finished"]:
            raise StoppedEarlyError
        self._losses = results["losses"]
        return self._updated(window, results)

    def stop(self) -> None:
        """Stop the current update before its next micro-batch. Any thread may call this method."""
        self._stopped.assign(True)

    def close(self) -> None:
        """Stop and wait for the update in progress, without applying it.

        With several workers, it is not stopped, because the others would stop as if by a signal.
        """
        if self._setup.session.topology.workers == 1:
            self.stop()
        self._thread.close()

    def not_finite(self, update: int, in_a_row: int, numbers: np.ndarray) -> DivergedError:
        """Return the error for too many consecutive updates whose loss or gradient is not finite.

        Args:
          update: Number of the last update, counted from 1.
          in_a_row: Number of these updates.
          numbers: Row number in train.tsv of each example in the token store, [examples] int.
        """
        window, what = self._prepare(update - 1), "gradient of the window"
        rows = by_length(self._store, window.rows)
        for share, losses in zip(window.shares, self._losses, strict=True):
            bad = [number for number, loss in enumerate(losses) if not math.isfinite(loss)]
            if bad:
                what = f"loss of micro-batch {bad[0] + 1} of {share.micro_steps}"
                rows = rows[share.positions[share.cuts[bad[0]] : share.cuts[bad[0] + 1]]]
                break
        named = listed([f"{number}" for number in numbers[rows]], _NAMED_ROWS)
        where = "train.tsv, rows" if self._setup.masking is None else "sequences"
        if self._setup.inputs.unlabelled is not None:
            where = (
                f"rows of train.tsv and, after its end, of {self._setup.inputs.unlabelled.path}:"
            )
        often = f", as in each of the last {in_a_row} updates" if in_a_row > 1 else ""
        return DivergedError(
            f"the {what} in update {update} is not finite ({where} {named}){often}",
            remedy(self._setup.config.precision),
        )

    def _prepare(self, number: int) -> _Prepared:
        """Return the window of an update; the one prepared last is kept."""
        made = self._prepared
        if made is None or made.number != number:
            config, examples = self._setup.config, len(self._store)
            epoch, rows = window_rows(number, examples, config.target_batch, config.seed)
            made = _Prepared(number, epoch, rows, self._shares(number, rows))
            for window in made.shares if self.overlaps else ():
                _ = window.tensors  # Convert the arrays now, not when the update starts.
            self._prepared = made
        return made

    def _shares(self, number: int, rows: np.ndarray) -> list[Window]:
        """Return the share of a window that each of this worker's replicas processes."""
        topology, plan = self._setup.session.topology, self.plan
        store, rows = self._setup.examples(number, rows)
        first, replicas = topology.first_replica, topology.replicas
        made_of = store, rows, plan.micro_batch, self._setup.cut(plan)
        shapes, prices = plan.shapes or (), self._setup.compilation.prices
        local = range(first, first + topology.local_replicas)
        return [make_window(*made_of, r, replicas, shapes, prices) for r in local]

    def _updated(self, window: _Prepared, results: dict[str, Any]) -> Updated:
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

    def _recover(self, update: int) -> OutOfMemory:
        """Change the plan after an update ran out of memory, counted from 1."""
        before, self._prepared = self.plan, None
        self.plan = recover(self._setup, self.optimizer, before, update)
        compiles = bool(before.shapes) != bool(self.plan.shapes)
        if self.plan.saving != before.saving or compiles or not before.accumulates:
            self._update = self._make_update()
        return OutOfMemory(update, before.micro_batch, self.plan.micro_batch, *self.plan.saving)

    def _make_update(self) -> Update:
        """Return a function that runs one update, given the shares of this worker's replicas."""
        setup, topology = self._setup, self._setup.session.topology
        made_of = setup.objective, setup.model, self.optimizer, setup.config.seed
        stream, compile = setup.config.dropout_stream, bool(self.plan.shapes)
        if topology.replicas > 1:
            trainee = Trainee(*made_of, stream, compile)
            return make_shared_update(trainee, self._stopped, topology, setup.session.watch)
        accumulates = self.plan.accumulates
        alone = make_update(*made_of, accumulates, self._stopped, stream, compile)
        compiled = set[tuple[int, int]]()

        def update(windows: list[Window]) -> dict[str, Any]:
            (window,) = windows
            self._compile(alone, compiled)
            results = alone(window)
            sizes = {key: getattr(window, key) for key in ("micro_steps", "padded_tokens")}
            return results | sizes | {"losses": [results["losses"]]}

        return update

    def _compile(self, update: Callable[[Window], Any], compiled: set[tuple[int, int]]) -> None:
        """Compile an update's steps for the plan's shapes, so that a message can say so.

        With several replicas, the first window of each shape compiles them.
        """
        shapes = self.plan.shapes or ()
        for number, shape in enumerate(shapes):
            if shape not in compiled:
                self._setup.session.progress("compiling steps", number + 1, len(shapes))
                update(empty_window(shape, self._setup.examples(0, np.arange(0))[0].labels[:0]))
                self.optimizer.drop()
                compiled.add(shape)


class UpdateThread:
    """A thread that runs one update at a time.

    TensorFlow releases Python's global lock while it computes. A single thread serves all updates,
    because TensorFlow keeps its options for calls of functions per thread.

    Attributes:
      seconds: Time that the last update ran, in seconds, including its failed attempts.
      peak_memory_bytes: Peak memory of the last update in bytes; None if unknown.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.peak_memory_bytes: int | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="updates")
        self._future: Future[dict[str, Any]] | None = None
        self._ident: int | None = None
        self._entered = threading.Semaphore(0)

    @property
    def is_running(self) -> bool:
        """Whether an update was started whose results were not yet returned."""
        return self._future is not None

    def start(self, update: Update, windows: list[Window], again: bool) -> None:
        """Start an update, and return once its thread has begun to run it."""
        self._future = self._executor.submit(self._run, update, windows, again)
        # If the caller kept Python's global lock, the thread could wait for it for 5 ms.
        self._entered.acquire()

    def result(self) -> dict[str, Any]:
        """Wait for the update, and return its results or raise its error."""
        assert self._future is not None
        future, self._future = self._future, None
        return future.result()

    def close(self) -> None:
        """Wait until the update in progress has ended, and end the thread."""
        # Garbage collection may close an abandoned run in any thread, and no thread can wait for
        # itself.
        self._executor.shutdown(wait=threading.get_ident() != self._ident)

    def _run(self, update: Update, windows: list[Window], again: bool) -> dict[str, Any]:
        self._ident = threading.get_ident()
        self._entered.release()
        if not again:
            reset_peak_memory()
            self.seconds = 0.0
        start = time.perf_counter()
        try:
            return update(windows)
        finally:
            self.seconds += time.perf_counter() - start
            self.peak_memory_bytes = peak_memory_bytes()
