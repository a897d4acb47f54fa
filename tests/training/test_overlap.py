"""The next update runs while the consumer handles an update's event, and nothing else changes."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from resuming import result
from scripted import CountedPasses, Failing, ScriptedScores, under
from small import write_small_task

import bertaccum
from bertaccum.options.commands import TrainConfig
from bertaccum.runs.folder import RunFolder
from bertaccum.system.progress import silent
from bertaccum.system.stopping import Stopping
from bertaccum.training import loop, updater
from bertaccum.training.checkpoints import Checkpoints, saved_states
from bertaccum.training.dev_evaluator import DevEvaluator
from bertaccum.training.events import Event, OutOfMemory, Stopped, Updated
from bertaccum.training.train import resume, train
from bertaccum.training.updater import Updater, UpdateThread

# Each window has three micro-batches, of three, three and two examples.
UPDATES, MICRO_STEPS = 6, 3
# A test that waits longer fails.
SECONDS = 60

Make = Callable[..., TrainConfig]


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the options of six updates, by default without pauses between them."""
    folder = tmp_path_factory.mktemp("data") / "reviews"
    encoder = write_small_task(folder, train=8 * UPDATES, dev=10)
    values = {"data": str(folder), "bert_config": str(encoder), "init_checkpoint": "none"}
    values |= {"max_seq_length": 16, "target_batch": 8, "micro_batch": 3, "cut": "count"}
    values |= {"epochs": 1.0, "save_every": "100", "learning_rate": 1e-2}
    return values | {"noise_scale": "none"}


@pytest.fixture
def config(values: dict[str, Any], tmp_path: Path) -> Make:
    """Return a function that configures a run in the test's own folder."""
    return lambda name, **options: TrainConfig(**(values | {"out": str(tmp_path / name)} | options))


@pytest.fixture(scope="module")
def whole(
    values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], list[bool]]:
    """Return the result of a run whose updates were never discarded, and how it made windows.

    This is a value for each window: False if the first update, which waits for the second window,
    had not begun when a later window was made.
    """
    out = tmp_path_factory.mktemp("whole") / "run"
    passes, made, make = Passes(1), list[bool](), updater.make_window

    def making(*arguments: Any) -> Any:
        made.append(not made or passes.begun.wait(SECONDS))
        window = make(*arguments)
        if len(made) == 2:
            passes.released.set()
        return window

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(updater, "make_window", making)
        under(passes, train(TrainConfig(**values, out=str(out)), silent))
    return result(out), made


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[UpdateThread]:
    """Return the list of threads of all runs."""
    made: list[UpdateThread] = []

    def make() -> UpdateThread:
        made.append(UpdateThread())
        return made[-1]

    monkeypatch.setattr(updater, "UpdateThread", make)
    return made


def watched(monkeypatch: pytest.MonkeyPatch, threads: list[UpdateThread]) -> list[tuple[str, bool]]:
    """Return a list that receives each evaluation and checkpoint, and whether an update runs."""
    found: list[tuple[str, bool]] = []

    def watch(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            found.append((name, threads[-1].is_running))
            return method(*arguments)

        monkeypatch.setattr(owner, name, call)

    watch(DevEvaluator, "evaluate")
    watch(Checkpoints, "save")
    return found


def left() -> list[threading.Thread]:
    """Return the threads of updates that have not ended."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("updates")]


class Passes(CountedPasses):
    """Counts the forward passes of training; one of them waits until it is released.

    If the run has then been closed without waiting for this pass, `outlived` becomes True.
    """

    def __init__(self, held: int) -> None:
        self.count, self.outlived = 0, False
        self.begun, self.released, self.closed = (threading.Event() for _ in range(3))
        self.waits_for_close = False
        self._held = held
        super().__init__(self._pass)

    def _pass(self) -> None:
        self.count += 1
        if self.count == self._held:
            self.begun.set()
            assert self.released.wait(SECONDS)
            # In a correct run, this always takes the whole second.
            self.outlived = self.waits_for_close and self.closed.wait(1)


def test_next_window_is_made_while_an_update_runs(whole: tuple[Any, list[bool]]) -> None:
    # Each window is made once; the one after the last update is made in vain.
    assert whole[1] == [True] * (1 + UPDATES)


def test_no_update_runs_during_evaluations_and_checkpoints(
    config: Make, monkeypatch: pytest.MonkeyPatch, threads: list[UpdateThread]
) -> None:
    found, early = watched(monkeypatch, threads), []
    with ScriptedScores(accuracy=[0.9, 0.8]):
        for event in train(config("run", eval_every=3, save_every="2", max_updates=4), silent):
            if isinstance(event, Updated):
                early.append(threads[0].is_running)
    # Checkpoints follow update 2, the best evaluation after update 3, and the last update.
    assert early == [True, False, False, False]
    names = ["save", "evaluate", "save", "save", "evaluate"]
    assert found == [(name, False) for name in names]


def test_updates_of_a_cpu_with_a_memory_limit_do_not_overlap_with_the_host(
    config: Make, monkeypatch: pytest.MonkeyPatch, threads: list[UpdateThread]
) -> None:
    monkeypatch.setattr(updater, "limits_the_host", lambda: True)
    early, converted, start = [], [], UpdateThread.start

    def starting(self: UpdateThread, update: Any, windows: Any, again: bool) -> None:
        converted.append("tensors" in vars(windows[0]))
        start(self, update, windows, again)

    monkeypatch.setattr(UpdateThread, "start", starting)
    for event in train(config("run", max_updates=3), silent):
        if isinstance(event, Updated):
            early.append(threads[0].is_running)
    assert early == converted == [False] * 3


def test_checkpoint_due_by_time_follows_the_update_in_progress(
    config: Make, monkeypatch: pytest.MonkeyPatch, threads: list[UpdateThread]
) -> None:
    """A clock that runs backwards would have no effect, because only a monotonic one is read."""
    now = [0.0]
    clocks = SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter)
    monkeypatch.setattr(loop, "time", clocks)
    timed = config("timed", save_every="10m", keep=UPDATES)
    for event in train(timed, silent):
        if isinstance(event, Updated) and event.update == 2:
            assert threads[0].is_running
            now[0] += 700
    saved = [path.name for path in saved_states(RunFolder(Path(str(timed.out))).checkpoints)]
    assert [int(name.removeprefix("update-")) for name in saved] == [3, UPDATES]


def test_out_of_memory_in_an_update_that_started_early(config: Make) -> None:
    events = under(Failing({MICRO_STEPS + 2}, training=True), train(config("cut"), silent))
    kinds = [(type(e), e.update) for e in events if isinstance(e, Updated | OutOfMemory)]
    assert kinds[:4] == [(Updated, 1), (OutOfMemory, 2), (Updated, 2), (Updated, 3)]
    steps = [event.micro_steps for event in events if isinstance(event, Updated)]
    assert steps == [MICRO_STEPS, *[8] * (UPDATES - 1)]


def releasing(passes: Passes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Release the held pass after the update was asked to stop, and see whether the run waits."""
    stop, close = Updater.stop, Updater.close

    def stopping(self: Updater) -> None:
        stop(self)
        passes.released.set()

    def closing(self: Updater) -> None:
        close(self)
        passes.closed.set()

    monkeypatch.setattr(Updater, "stop", stopping)
    monkeypatch.setattr(Updater, "close", closing)
    passes.waits_for_close = True


def test_next_update_runs_while_an_event_is_handled_and_an_error_then_discards_it(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of a callback closes the events, and leaves no thread."""
    passes = Passes(MICRO_STEPS + 1)
    releasing(passes, monkeypatch)

    def callback(event: Event) -> None:
        if isinstance(event, Updated):
            assert passes.begun.wait(SECONDS), "update 2 waits for the consumer of update 1"
            raise ZeroDivisionError

    with passes, pytest.raises(ZeroDivisionError) as raised:
        bertaccum.train(config("run"), callback=callback)
    # The traceback, and with it the frames of the run, still exist here.
    assert (passes.count, left(), raised.tb is None) == (MICRO_STEPS + 1, [], False)
    assert passes.released.is_set() and not passes.outlived


def test_signal_discards_an_update_that_started_early(
    config: Make,
    whole: tuple[dict[str, Any], Any],
    monkeypatch: pytest.MonkeyPatch,
    threads: list[UpdateThread],
) -> None:
    passes, stopping = Passes(MICRO_STEPS + 1), Stopping()
    releasing(passes, monkeypatch)
    stopped, found = config("stopped"), watched(monkeypatch, threads)
    with passes:
        for event in train(stopped, silent, stopping):
            if isinstance(event, Updated):
                assert passes.begun.wait(SECONDS)
                stopping.requested = signal.SIGTERM
                assert stopping._request is not None
                stopping._request()
    assert event == Stopped(1, signal.SIGTERM, Path(str(stopped.out)))
    assert (passes.count, found) == (MICRO_STEPS + 1, [("save", False)])
    list(resume(Path(str(stopped.out)), {}, silent))
    assert result(stopped.out) == whole[0]


def test_seconds_are_those_of_all_attempts_but_not_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resets: list[None] = []
    readings = itertools.accumulate([0, 1, 100, 2, 100, 4])
    monkeypatch.setattr(updater, "reset_peak_memory", lambda: resets.append(None))
    clock = SimpleNamespace(perf_counter=lambda: next(readings))
    monkeypatch.setattr(updater, "time", clock)

    def fail(_: object) -> dict[str, Any]:
        raise tf.errors.ResourceExhaustedError(None, None, "no memory")

    thread = UpdateThread()
    thread.start(fail, [], again=False)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        thread.result()
    thread.start(lambda _: {"loss": 1.0}, [], again=True)
    assert thread.result() == {"loss": 1.0}
    assert (thread.seconds, len(resets)) == (1 + 2, 1)
    thread.start(lambda _: {}, [], again=False)
    thread.result()
    assert (thread.seconds, len(resets)) == (4, 2)
    thread.close()


def test_thread_of_an_update_can_close_an_abandoned_run() -> None:
    thread = UpdateThread()
    thread.start(lambda _: {"closed": thread.close()}, [], again=False)
    assert thread.result() == {"closed": None}
