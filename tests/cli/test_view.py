"""Progress on a terminal, in logs as lines or JSON records, and in pipes without a reader."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bertaccum.cli.display import run_progress, run_tables, sentences
from bertaccum.cli.display.run_progress import RunStatistics
from bertaccum.cli.display.terminal_view import Live
from bertaccum.cli.display.view import Lines, Records, View
from bertaccum.cli.options import make_view
from bertaccum.options import metrics
from bertaccum.planning.plan import make_plan
from bertaccum.training.events import Evaluated, OutOfMemory, Started, Updated

STARTED = Started(
    folder=Path("runs/one"),
    model="bert-tiny",
    pretrained=True,
    parameters=1000,
    train_examples=40,
    dev_examples=8,
    plan=make_plan(32, 8),
    why="the fastest of the 3 candidates that fit: 64.0 examples/s",
    updates=50,
    done=9,
)


def test_numbers_of_one_have_singular_nouns() -> None:
    values = {"train_examples": 1, "updates": 1, "plan": make_plan(1, 1)}
    said = sentences.started(dataclasses.replace(STARTED, **values))
    assert "1 example to train on" in said and "no accumulation; 1 update\n" in said
    assert metrics.mean_loss(0.5, 1) == "0.5000 (mean over the last 1 example)"


def updated(number: int, loss: float = 0.5, skipped: bool = False) -> Updated:
    return Updated(
        update=number,
        epoch=1,
        loss=loss,
        examples=32,
        micro_steps=4,
        tokens=320,
        padded_tokens=352,
        learning_rate=2e-5,
        grad_norm=1.0,
        seconds=0.5,
        examples_per_second=64.0,
        skipped=skipped,
        peak_memory_bytes=90 * 2**20,
    )


EVALUATED = Evaluated(
    update=12,
    best=True,
    scores={
        "accuracy": 0.75,
        "loss": 0.6,
        "matthews_correlation": 0.5,
        "macro_f1": 0.7333,
        "examples": 8,
        "majority_class": "bad",
        "majority_accuracy": 0.625,
    },
)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list with the time of the simulated clock in seconds, which a test can change."""
    now = [100.0]
    monkeypatch.setattr(run_progress.time, "monotonic", lambda: now[0])
    return now


def test_lines_show_progress_and_remaining_time(
    now: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with Lines(10) as view:
        view("tokenizing", 10, 50)
        now[0] += 1
        view("tokenizing", 15, 50)  # Within the interval, so not shown.
        now[0] += 19
        view("tokenizing", 20, 50)
        now[0] += 20
        view("counting", 3, None)
        now[0] += 3000
        view("tokenizing", 10, 50)  # A new phase of the same name.
        now[0] += 10
        view("tokenizing", 30, 50)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "tokenizing: 10 of 50",
        "tokenizing: 20 of 50  0:01:00 left",
        "counting: 3",
        "tokenizing: 10 of 50",
        "tokenizing: 30 of 50  0:00:10 left",
    ]


def test_lines_show_the_events_of_a_run(
    now: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    view = Lines(10)
    view.event(STARTED)
    assert "resuming after update 9\nrun folder: runs/one" in capsys.readouterr().err
    for number, seconds in ((10, 60), (11, 2), (12, 8)):
        now[0] += seconds
        view.event(updated(number, loss=0.5 if number < 12 else 0.1))
    view.event(OutOfMemory(update=13, out_of_memory=8, micro_batch=4, recompute="none"))
    view.event(EVALUATED)
    view.event(updated(13, math.nan, skipped=True))
    assert capsys.readouterr().err.splitlines() == [
        "training: 10 of 50  loss 0.5000 (0.5000 smoothed)  lr 2e-05  64.0 examples/s  90 MiB",
        # The estimate leaves out the first update, which includes tracing: 38 updates of 5 s.
        "training: 12 of 50  loss 0.1000 (0.3598 smoothed)  lr 2e-05  64.0 examples/s  90 MiB"
        "  0:03:10 left",
        "update 13: out of memory with micro-batches of 8; running the update again in"
        " micro-batches of 4",
        "update 12: dev accuracy 0.7500 (majority baseline 0.6250), macro-F1 0.7333, loss 0.6000"
        "  (best so far)",
        "update 13: skipped, because the gradient was not finite",
    ]


def test_evaluation_line_starts_with_the_best_metric(capsys: pytest.CaptureFixture[str]) -> None:
    view = Lines(10)
    view.event(dataclasses.replace(STARTED, best_by="matthews_correlation"))
    capsys.readouterr()
    only = dataclasses.replace(EVALUATED, scores=EVALUATED.scores | {"only_prediction": "bad"})
    for event in (EVALUATED, dataclasses.replace(only, best=False), only):
        view.event(event)
    first, second, third = capsys.readouterr().err.splitlines()
    scores = "update 12: dev Matthews correlation 0.5000, accuracy 0.7500"
    assert first == f"{scores} (majority baseline 0.6250), macro-F1 0.7333, loss 0.6000" + (
        "  (best so far)"
    )
    warning = "the model predicts class 'bad' for all 8 examples"
    assert second == f"{scores}, macro-F1 0.7333, loss 0.6000  ({warning})"
    assert third == f"{scores}, macro-F1 0.7333, loss 0.6000  (best so far, but {warning})"
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with Live(console) as live:
        for event in (
            dataclasses.replace(STARTED, best_by="matthews_correlation"),
            updated(10),
            EVALUATED,
        ):
            live.event(event)
    assert "dev Matthews correlation" in console.file.getvalue().splitlines()[-3]


def test_summary_of_a_run_names_the_best_metric(capsys: pytest.CaptureFixture[str]) -> None:
    best = EVALUATED.record()
    summary = {
        "best_by": "macro_f1", "best_evaluation": best, "last_evaluation": best | {"macro_f1": 0.7},
        "updates": 50, "examples": 1600, "stopped_early": False, "peak_memory_bytes": None,
        "examples_per_second": 64.0, "total_seconds": 30.0,
    }  # fmt: skip
    run_tables.print_summary(summary, "runs/one", 134.2)
    assert capsys.readouterr().out.splitlines() == [
        "run folder                           runs/one",
        "updates                              50 (1,600 examples)",
        "best dev macro-F1                    0.7333 (update 12)",
        "dev accuracy of the best checkpoint  0.7500",
        "dev majority baseline                0.6250 (always predicting 'bad')",
        "dev loss of the best checkpoint      0.6000",
        "note                                 accuracy 0.7500 is barely better than the majority"
        " baseline 0.6250",
        "final dev macro-F1                   0.7000",
        "speed                                64.0 examples/s",
        "training time                        30 s",
        "time of the command                  134 s",
    ]


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"pretrained_head": True}, "encoder and head from the best checkpoint of run first"),
        (
            {},
            "encoder from the best checkpoint of run first; the head is random, because the run has"
            " none for these labels",
        ),
        (
            {"head_difference": "the unit of the scores"},
            "encoder from the best checkpoint of run first; the head is random, because the unit of"
            " the scores differs; --keep-head keeps it",
        ),
    ],
)
def test_start_line_names_the_run_of_the_initial_weights(event: dict[str, Any], said: str) -> None:
    start = dataclasses.replace(STARTED, pretrained_run="first", **event)
    assert sentences.started(start).splitlines()[0] == f"bert-tiny: 1,000 parameters, {said}"


def test_finished_run_does_not_trace(capsys: pytest.CaptureFixture[str]) -> None:
    over = dataclasses.replace(STARTED, done=50, over="start a new run")
    Lines(10).event(over)
    errors = capsys.readouterr().err
    assert (
        "\nalready finished at update 50; to train further, start a new run\nrun folder: "
    ) in errors
    assert "tracing" not in errors and "resuming" not in errors
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with Live(console) as view:
        view.event(over)
    assert "tracing" not in console.file.getvalue()


def test_records_are_valid_json(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    view = make_view(False, "json", 10)
    assert isinstance(view, Records)
    view("tokenizing", 3, None)
    for event in (STARTED, updated(10), EVALUATED, updated(11, math.nan, skipped=True)):
        view.event(event)
    view.event(OutOfMemory(update=12, out_of_memory=8, micro_batch=4, recompute="none"))
    now[0] += 10
    view.event(updated(12))
    view.note("a note")
    view.error("it failed", 1)
    captured = capsys.readouterr()
    assert captured.out == ""
    found = [json.loads(line) for line in captured.err.splitlines()]
    assert [r["event"] for r in found] == [
        "progress", "started", "evaluated", "updated", "out_of_memory", "updated", "note", "error",
    ]  # fmt: skip
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT.*[+-]\d\d:\d\d", r["time"]) for r in found)
    assert found[1]["plan"]["micro_batch"] == 8
    assert found[3]["loss"] is None
    assert found[5]["update"] == 12
    assert (found[7]["message"], found[7]["exit_code"]) == ("it failed", 1)


@pytest.mark.parametrize(
    ("pretrained", "pooler", "said"),
    [
        (True, True, "pretrained"),
        (True, False, "pretrained, except for the pooler, which is random"),
        (False, True, "random weights, not pretrained"),
    ],
)
def test_start_line_names_random_weights(pretrained: bool, pooler: bool, said: str) -> None:
    start = dataclasses.replace(STARTED, pretrained=pretrained, pretrained_pooler=pooler)
    assert sentences.started(start).splitlines()[0] == f"bert-tiny: 1,000 parameters, {said}"


@pytest.mark.parametrize("kind", [Lines, Records])
def test_worker_other_than_the_chief_shows_its_own_events(
    kind: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    event = OutOfMemory(update=1, out_of_memory=8, micro_batch=4, recompute="none")
    kind(10).event(event)
    with Live(Console(file=io.StringIO(), force_terminal=True)) as live:
        live.event(event)
    assert "out" in capsys.readouterr().err


def test_quiet_shows_errors_only(capsys: pytest.CaptureFixture[str]) -> None:
    view = make_view(True, "text", 0)
    assert type(view) is View
    view("tokenizing", 1, 2)
    view.note("a note")
    view.event(STARTED)
    view.error("it failed", 1)
    assert capsys.readouterr().err == "error: it failed\n"


def test_quiet_records_contain_errors_only(capsys: pytest.CaptureFixture[str]) -> None:
    view = make_view(True, "json", 0)
    view("tokenizing", 1, 2)
    view.note("a note")
    view.event(STARTED)
    view.log("a line of TensorFlow")
    view.error("it failed", 1)
    records = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [record["event"] for record in records] == ["log", "error"]
    assert (records[1]["message"], records[1]["exit_code"]) == ("it failed", 1)


def test_notes_name_options_as_flags(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with Live(console) as live:
        views: list[View] = [live, Lines(10), Records(10)]
        for view in views:
            view.note("pass `label_form` numbers, or `drop_duplicates=False`")
    said = console.file.getvalue() + capsys.readouterr().err
    assert said.count("pass --label-form numbers, or --no-drop-duplicates") == 3


@pytest.mark.parametrize("colour", [True, False])
def test_terminal_shows_all_current_figures(monkeypatch: pytest.MonkeyPatch, colour: bool) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    seen = io.StringIO()
    console = Console(file=seen, force_terminal=True, width=120)
    with Live(console) as view:
        view("tokenizing reviews.tsv", 20, 40)
        view.event(STARTED)
        view.event(updated(10))
        view.event(EVALUATED)
        view.event(OutOfMemory(update=11, out_of_memory=8, micro_batch=4, recompute="none"))
        view.event(updated(11))
        view("evaluating", 8, 8)
    screen = seen.getvalue()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)
    assert "bert-tiny: 1,000 parameters, pretrained" in plain
    assert "update 12: dev accuracy 0.7500" in plain
    last = plain[plain.rindex("training") :]
    for name, value in {
        "loss": "0.5000", "smoothed": "0.5000", "learning rate": "2.00e-05", "memory": "90 MiB",
        "examples/s": "64.0", "dev accuracy": "0.7500", "out of memory": "1",
    }.items():  # fmt: skip
        assert name in last and value in last, name
    assert "11/50" in last
    assert "skipped" not in last and "evaluating" not in last
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]", screen)) == colour


def test_smoothed_loss_is_a_bias_corrected_moving_average() -> None:
    found = RunStatistics(STARTED)
    for number, loss in enumerate([1.0, 0.0, math.nan], 10):
        found.update(updated(number, loss, skipped=math.isnan(loss)))
    assert found.loss.value == pytest.approx(0.95 / 1.95)
    assert found.skipped == 1
    for number in range(13, 213):
        found.update(updated(number, 0.25))
    assert found.loss.value == pytest.approx(0.25, abs=1e-4)


def test_closed_pipe_prints_no_error() -> None:
    code = "import time, bertaccum.cli.program as c; time.sleep(1); c.main(['train', '--help'])"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [("models >&-", 0), ("runs . 2>&-", 0), ("prepare --source nosuch 2>&-", 2)],
)
def test_messages_are_lost_but_not_errors_if_a_stream_is_closed(
    tmp_path: Path, arguments: str, code: int
) -> None:
    command = ["sh", "-c", f"exec {sys.executable} -m bertaccum {arguments}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "unexpected" not in done.stderr


def test_records_are_not_wrapped_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(terminal, "fileno", lambda: 2)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((80, 24)))
    monkeypatch.setattr(sys, "stderr", terminal)
    Records(0).note("many words " * 40)
    (line,) = terminal.getvalue().splitlines()
    assert json.loads(line)["text"].startswith("many words many")


def test_view_is_live_only_on_a_terminal_of_known_size(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: dict[Any, Any] = {(80, 24): Live, (0, 0): Lines, None: Lines}
    for size, kind in kinds.items():
        monkeypatch.setattr(sys.stderr, "isatty", lambda size=size: size is not None)
        monkeypatch.setattr(os, "get_terminal_size", lambda *_, size=size: os.terminal_size(size))
        assert isinstance(make_view(False, "text", 1), kind)


def screen_after(show: Callable[[Live], None], width: int = 80) -> list[str]:
    """Return the lines that are visible on a terminal of 60 lines when the view has stopped."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=60)
    with Live(console) as view:
        show(view)
    return visible_lines(console.file.getvalue())


def visible_lines(written: str) -> list[str]:
    """Return what a terminal shows after the control sequences that rich writes."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", written):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part.endswith("A"):
            row -= int(part[2:-1] or 1)
        elif part.endswith("2K"):
            lines[row] = ""
        elif not part.startswith("\x1b"):
            line = lines[row].ljust(column)
            lines[row] = line[:column] + part + line[column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]


def test_phase_of_unknown_length_is_removed_when_the_next_one_begins() -> None:
    def plan_and_train(view: Live) -> None:
        view("measurements of memory and speed", 1, None)
        view("tokenizing", 20, 40)
        view._live.refresh()
        assert not any("measurements" in line for line in current(view))
        view("measurements of memory and speed", 2, None)  # It can go on.
        view._live.refresh()
        assert any("measurements" in line and "2/?" in line for line in current(view))
        view.event(STARTED)
        view._live.refresh()
        assert not any("measurements" in line for line in current(view))
        view.event(updated(10))
        view("evaluating", 3, 8)
        view.event(updated(11))

    lines = screen_after(plan_and_train)
    assert not any(name in line for line in lines for name in ("measur", "token", "evaluating"))
    assert any(line.startswith("training") and "11/50" in line for line in lines)
    assert not any("checking" in line for line in screen_after(lambda v: v("checking", 0, None)))


def current(view: Live) -> list[str]:
    return visible_lines(view._console.file.getvalue())


def test_terminal_shows_one_remaining_time_of_training(now: list[float]) -> None:
    def train(view: Live) -> None:
        view.event(STARTED)
        for number, seconds in ((10, 60), (11, 2), (12, 8)):
            now[0] += seconds
            view.event(updated(number))
        view._live.refresh()
        times = re.findall(r"\d+:\d\d:\d\d", " ".join(current(view)))
        assert times[1:] == ["0:03:10"]  # After the elapsed time.
        assert " ".join(current(view)).count("0:03:10 left") == 1

    screen_after(train)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_terminal_breaks_lines_between_words(width: int) -> None:
    command = "`bertaccum train --resume runs/a-long-name-of-a-run --max-updates 20,000`"
    message = (
        "32 examples per update: micro-batches of 8 examples, more if they are short; stopped by a"
        f" signal, so resume with {command} or see /a/folder/with/an-unusually/long-name/of/it"
    )

    def show(view: Live) -> None:
        view.note(message)
        view("measurements of memory and speed", 123_456, 234_567)
        view._live.refresh()
        words = [word for line in current(view) for word in line.split()]
        assert {"measurements", "of", "memory", "and", "speed"} <= {*words}

    lines = screen_after(show, width)
    assert " ".join(lines).split() == message.split()
    assert command in "\n".join(lines)
    assert len(lines[0]) <= width and len(lines) > 2
    assert sentences.wrapped("name   a b c", 9, indent=7) == "name   a\n       b\n       c"


def test_lines_wrap_by_the_width_of_their_characters_on_a_terminal() -> None:
    line = "note: 类别 名称 文本 标签 模型 `train --max-seq-length 64` 数据"
    lines = sentences.wrapped(line, 29).splitlines()
    assert lines == ["note: 类别 名称 文本 标签", "模型", "`train --max-seq-length 64`", "数据"]
    assert sentences.wrapped(line, 0) == sentences.wrapped(line, 80) == line
    # Characters without a width, such as combining ones, take no room.
    assert sentences.wrapped("e\u0301" * 10, 10) == "e\u0301" * 10
    # A line of 20 characters that is 40 cells wide does not fit.
    assert "\n" in sentences.wrapped("类" * 10 + " " + "类" * 9, 30)
    terminal = io.StringIO()
    Live(Console(file=terminal, width=29, force_terminal=True)).note(line)
    assert [row.strip() for row in terminal.getvalue().splitlines()] == lines


def test_loss_that_hardly_fell_is_said() -> None:
    falling = [1.1 - 0.02 * n for n in range(30)]
    assert sentences.hardly_fell(falling) == ""
    assert sentences.hardly_fell([0.2] * 30) == sentences.hardly_fell([1.1] * 19) == ""
    assert sentences.hardly_fell([None, *falling]) == ""  # A loss that was not finite.
    said = sentences.hardly_fell([1.1] * 27 + [1.05] * 3)
    assert said.startswith("the training loss hardly fell, from 1.1000 to 1.0500 in 30 updates")
