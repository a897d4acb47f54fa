"""Progress in a notebook, and the view that suits where Python runs."""

from __future__ import annotations

import dataclasses
import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from test_view import EVALUATED, STARTED, updated

import bertaccum
from bertaccum.cli.display import notebook_view
from bertaccum.cli.display.notebook_view import Notebook
from bertaccum.cli.display.view import Lines


class Output:
    """An output of a notebook, which remembers what it showed."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def update(self, data: dict[str, str], raw: bool) -> None:
        assert raw
        self.shown.append(data)


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch) -> Output:
    """Pretend that a notebook runs the test, and return the output of its cell."""
    output = Output()

    def display(*_: Any, **__: Any) -> Output:
        return output

    shell = SimpleNamespace(kernel=object())
    fake = SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    return output


def test_notebook_shows_notes_bars_and_numbers(output: Output) -> None:
    with bertaccum.live() as view:
        assert isinstance(view, Notebook)
        view("tokenizing <train.tsv>", 1, 4)
        assert "tokenizing <train.tsv>" in output.shown[0]["text/plain"]
        assert "tokenizing &lt;train.tsv&gt;" in output.shown[0]["text/html"]
        view.note("a note about `target_batch`")
        for event in (STARTED, updated(10), dataclasses.replace(EVALUATED, update=10), updated(50)):
            view.event(event)
    last = output.shown[-1]["text/plain"]
    assert "tokenizing" not in last
    for text in (
        "a note about `target_batch`",
        "update 10: dev accuracy 0.7500",
        "50/50",
        "90 MiB",
    ):
        assert last.count(text) == 1, text
    assert output.shown[-1]["text/html"].startswith("<pre")


def test_notebook_is_not_drawn_for_every_update(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook_view, "_SECONDS", math.inf)
    with bertaccum.live() as view:
        view.event(STARTED)
        before = len(output.shown)
        view.event(updated(10))
        view.event(updated(11))
        assert len(output.shown) == before
    assert "11/50" in output.shown[-1]["text/plain"]


def test_live_shows_lines_outside_of_notebooks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    with bertaccum.live() as view:
        assert isinstance(view, Lines)
        view.event(STARTED)
    assert "bert-tiny" in capsys.readouterr().err
