"""The view for a terminal: progress bars and numbers at the bottom, events scrolling above."""

from __future__ import annotations

import os
import sys

from rich import progress
from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live as RichLive
from rich.progress import Task, TaskID
from rich.table import Column
from rich.text import Text

from bertaccum.cli.display import sentences
from bertaccum.cli.display.run_progress import RunStatistics, follow
from bertaccum.cli.display.table_fitting import fitted
from bertaccum.cli.display.view import View
from bertaccum.options.metrics import LABELS, shown
from bertaccum.system.printable import printable
from bertaccum.system.sizes import known_size
from bertaccum.training.events import Event

_TRAINING = "training"
# On terminals narrower than this, bars are omitted to leave room for the numbers beside them.
_WITH_BARS = 60
# Length of the longest word in the names of phases, apart from paths.
_LONGEST_WORD = len("measurements")


class _Terminal(Console):
    """A console as wide as its terminal.

    rich would read the width from file descriptor 2, which is captured.
    """

    @property  # type: ignore[misc]
    def size(self) -> ConsoleDimensions:
        try:
            return ConsoleDimensions(*os.get_terminal_size(self.file.fileno()))
        except (OSError, ValueError):
            return super().size


class Live(View):
    """A view that shows phases as progress bars, and the state of training as a row of numbers."""

    def __init__(self, console: Console | None = None, verbose: bool = False) -> None:
        super().__init__(verbose)
        self._tasks: dict[str, TaskID] = {}
        self._statistics: RunStatistics | None = None
        self._is_own_console = console is None
        self._console = console or _Terminal(stderr=True, emoji=False)
        self._bars = _bars(self._console.width)
        self._live = RichLive(
            console=self._console,
            get_renderable=self._render,
            refresh_per_second=4,
            # If stdout is a file or a pipe, results must not appear on the terminal.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=False,
        )

    def __enter__(self) -> Live:
        super().__enter__()
        if self._is_own_console:
            self._console.file = self.stderr
        self._live.start()
        return self

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(printable(what), total=total)
        task = self._tasks[what]
        if done < self._bars.tasks[self._bars.task_ids.index(task)].completed:
            self._bars.reset(task)  # The phase has started again, as evaluation does.
        if what != _TRAINING:
            self._hide_phases()
        # Hide the bars of finished phases, except that of training.
        visible = what == _TRAINING or done != total
        self._bars.update(task, completed=done, total=total, visible=visible)

    def _hide_phases(self) -> None:
        """Hide the bars of all phases but training; a phase of unknown length does not end."""
        for what, task in self._tasks.items():
            if what != _TRAINING:
                self._bars.update(task, visible=False)

    def note(self, line: str) -> None:
        text = sentences.wrapped(printable(sentences.with_flags(line), "\t"), self._console.width)
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def event(self, event: Event) -> None:
        self._statistics = follow(self._statistics, event, self.note)
        if self._statistics is not None:
            self._hide_phases()
            self(_TRAINING, self._statistics.done, self._statistics.total)
            self._bars.update(self._tasks[_TRAINING], seconds_left=self._statistics.seconds_left)

    def log(self, line: str) -> None:
        self.note(line)

    def stop(self) -> str:
        self._hide_phases()
        self._live.stop()
        held = super().stop()
        if self._is_own_console:
            self._console.file = self.stderr
        return held

    def _render(self) -> Group:
        width = self._console.width
        return Group(self._bars, *([_figures(self._statistics, width)] if self._statistics else []))


class _TimeLeft(progress.TimeRemainingColumn):
    """The remaining time: that of the statistics for training, which alone know of tracing."""

    def render(self, task: Task) -> Text:
        seconds = task.fields.get("seconds_left", task.time_remaining)
        if seconds is None or task.finished:
            return Text("")
        return Text(f"{sentences.duration(seconds)} left", style="progress.remaining")


def _bars(width: int) -> progress.Progress:
    """Return the progress bars; long names wrap, and neither words nor numbers are split."""
    whole, wide = Column(no_wrap=True), width >= _WITH_BARS
    name = Column(overflow="fold", min_width=min(_LONGEST_WORD, width // 3))
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False, table_column=name),
        *([progress.BarColumn(min(max(width - _WITH_BARS, 4), 40))] if wide else []),
        progress.MofNCompleteColumn(table_column=whole),
        *([progress.TimeElapsedColumn(table_column=whole)] if wide else []),
        _TimeLeft(table_column=whole),
    )


def _figures(statistics: RunStatistics, width: int) -> RenderableType:
    """Return a row of names above a row of values; omit empty values and what does not fit."""
    last, evaluated = statistics.last, statistics.evaluated
    if last is None:
        return "" if statistics.over else sentences.TRACING
    score = shown(evaluated.scores, statistics.best_by) if evaluated else ""
    values = {
        "loss": f"{last.loss:.4f}",
        "smoothed": f"{statistics.loss.value:.4f}",
        "learning rate": f"{last.learning_rate:.2e}",
        "examples/s": f"{statistics.speed.value:,.1f}",
        "memory": known_size(last.peak_memory_bytes),
        f"dev {LABELS[statistics.best_by]}": score,
        "out of memory": str(statistics.out_of_memory or ""),
        "skipped": str(statistics.skipped or ""),
    }
    known = {name: value for name, value in values.items() if value}
    table, _ = fitted([*known], [[*known.values()]], width, boxed=False)
    table.header_style = "dim"
    return table
