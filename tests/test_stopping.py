"""Signals: what is under way ends at once at first, later a run is asked, then told, to stop."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from bertaccum.stopping import Stopping, Terminated


def test_before_a_run_is_under_way_a_signal_ends_what_is_done() -> None:
    with Stopping() as stopping:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Terminated):
            os.kill(os.getpid(), signal.SIGTERM)
    assert stopping.requested is None
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_is_heard_while_the_main_thread_is_busy(number: int) -> None:
    heard, left = threading.Event(), threading.Event()
    before = signal.getsignal(number)
    with Stopping(lambda _: left.set(), grace_seconds=60) as stopping:
        stopping.heed(heard.set)
        os.kill(os.getpid(), number)
        assert heard.wait(10)
        assert stopping.requested == number
        assert not left.is_set()
        os.kill(os.getpid(), number)
        assert left.wait(10)
    # Who was asked to stop is about to end, and must not be disturbed any more.
    assert signal.getsignal(number) is signal.SIG_IGN
    signal.signal(number, before)


def test_the_grace_period_ends_but_not_while_a_state_is_saved() -> None:
    heard, left = threading.Event(), threading.Event()
    before = signal.getsignal(signal.SIGTERM)
    with Stopping(lambda _: left.set(), grace_seconds=0.2) as stopping:
        stopping.heed(heard.set)
        with stopping.saving():
            os.kill(os.getpid(), signal.SIGTERM)
            assert heard.wait(10)
            assert not left.wait(1)
        assert left.wait(10)
    signal.signal(signal.SIGTERM, before)


def test_what_was_never_entered_never_stops() -> None:
    stopping = Stopping()
    stopping.heed(lambda: None)
    with stopping.saving():
        assert stopping.requested is None
