"""Signals: exceptions before training starts, then a request to stop and a forced end."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from bertaccum.system.stopping import Stopping, Terminated


def test_signal_before_the_first_call_raises() -> None:
    with Stopping() as stopping:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Terminated):
            os.kill(os.getpid(), signal.SIGTERM)
    assert stopping.requested is None
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_request_arrives_while_the_main_thread_is_busy(number: int) -> None:
    heard, left = threading.Event(), threading.Event()
    before = signal.getsignal(number)
    with Stopping(lambda _: left.set(), grace_seconds=60) as stopping:
        stopping.call_on_signal(heard.set)
        os.kill(os.getpid(), number)
        assert heard.wait(10)
        assert stopping.requested == number
        assert not left.is_set()
        os.kill(os.getpid(), number)
        assert left.wait(10)
    # After a request the process is about to end, so it ignores further signals.
    assert signal.getsignal(number) is signal.SIG_IGN
    signal.signal(number, before)


def test_grace_period_does_not_end_while_the_process_waits_for_others() -> None:
    asked, arrived, left = (threading.Event() for _ in range(3))
    before = signal.getsignal(signal.SIGTERM)

    def is_waiting() -> bool:
        asked.set()
        return not arrived.is_set()

    with Stopping(lambda _: left.set(), grace_seconds=0.05) as stopping:
        stopping.call_on_signal(lambda: None)
        stopping.extend_while(is_waiting)
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.wait(10)
        assert not left.is_set()
        arrived.set()
        assert left.wait(10)
    signal.signal(signal.SIGTERM, before)


def test_grace_period_does_not_end_while_a_checkpoint_is_saved() -> None:
    heard, left = threading.Event(), threading.Event()
    before = signal.getsignal(signal.SIGTERM)
    with Stopping(lambda _: left.set(), grace_seconds=0.2) as stopping:
        stopping.call_on_signal(heard.set)
        with stopping.saving():
            os.kill(os.getpid(), signal.SIGTERM)
            assert heard.wait(10)
            assert not left.wait(1)
        assert left.wait(10)
    signal.signal(signal.SIGTERM, before)


def test_stopping_that_was_never_entered_requests_nothing() -> None:
    stopping = Stopping()
    stopping.call_on_signal(lambda: None)
    with stopping.saving():
        assert stopping.requested is None
