"""Progress lines where there is no terminal, and output that nobody reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bertaccum import report
from bertaccum.memory.plan import make_plan
from bertaccum.training.events import Started


def test_lines_say_how_far_and_how_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(report.time, "monotonic", lambda: now[0])
    with report.Progress() as progress:
        progress("training", 10, 50, "loss 0.5")
        now[0] += 1
        progress("training", 15, 50, "loss 0.4")  # too soon for another line
        now[0] += 19
        progress("training", 20, 50, "loss 0.3")
        now[0] += 20
        progress("counting", 3, None)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "training: 10 of 50  loss 0.5",
        "training: 20 of 50  loss 0.3  60 s left",
        "counting: 3",
    ]


@pytest.mark.parametrize(
    ("pretrained", "pooler", "said"),
    [
        (True, True, "pretrained"),
        (True, False, "pretrained but for the pooler, which is random"),
        (False, True, "random weights, not pretrained"),
    ],
)
def test_what_was_not_pretrained_is_said(pretrained: bool, pooler: bool, said: str) -> None:
    start = Started(
        folder=Path("run"),
        model="small",
        pretrained=pretrained,
        parameters=1000,
        train_examples=40,
        dev_examples=16,
        plan=make_plan(8, 4),
        why="so",
        updates=5,
        pretrained_pooler=pooler,
    )
    assert report.started(start).splitlines()[0] == f"small: 1,000 parameters, {said}"


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = "import time, bertaccum.cli as c; time.sleep(1); c.main(['train', '--help'])"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 1
