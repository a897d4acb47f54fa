"""The view for notebooks: what a terminal shows, in an output that is replaced."""

from __future__ import annotations

import io
import sys
import time
from typing import Any

from rich.console import Console

from bertaccum.cli.display import sentences
from bertaccum.cli.display.terminal_view import Live
from bertaccum.cli.display.view import View
from bertaccum.system.printable import printable
from bertaccum.training.events import Event

_WIDTH = 100
_SECONDS = 0.25  # Minimum time between two drawings.
_HTML = '<pre style="white-space: pre-wrap; line-height: 1.3">{code}</pre>'


class Notebook(Live):
    """A view that shows notes, progress bars and the state of training in a notebook's output."""

    def __init__(self, verbose: bool = False) -> None:
        super().__init__(Console(file=io.StringIO(), width=_WIDTH, force_jupyter=False), verbose)
        self._notes: list[str] = []
        self._drawn = 0.0
        self._output: Any = None

    def __enter__(self) -> Notebook:
        from IPython.display import display

        View.__enter__(self)
        self._output = display({"text/plain": ""}, raw=True, display_id=True)
        return self

    def __call__(self, what: str, done: int, total: int | None) -> None:
        super().__call__(what, done, total)
        if time.monotonic() - self._drawn >= _SECONDS:
            self._draw()

    def note(self, line: str) -> None:
        self._notes.append(sentences.wrapped(printable(line, "\t"), _WIDTH))
        self._draw()

    def event(self, event: Event) -> None:
        super().event(event)
        if self._statistics is not None and self._statistics.done == self._statistics.total:
            self._draw()

    def stop(self) -> str:
        self._hide_phases()
        self._draw()
        return View.stop(self)

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        page = Console(file=io.StringIO(), width=_WIDTH, record=True, force_jupyter=False)
        for line in self._notes:
            page.print(line, highlight=False, soft_wrap=True, markup=False)
        page.print(self._render())
        plain = page.export_text(clear=False)
        html = page.export_html(code_format=_HTML, inline_styles=True)
        if self._output is not None:
            self._output.update({"text/plain": plain, "text/html": html}, raw=True)


def live() -> View:
    """Return a view of a function's progress, for its argument `progress`.

        with bertaccum.live() as view:
            result = bertaccum.train(target_batch=32, progress=view)

    Returns:
      A context manager. In a notebook it shows bars and numbers in the output of the cell, and
        elsewhere what the command shows on stderr. Inside the context, the output of TensorFlow is
        hidden; it is shown if the function fails.
    """
    if "IPython" in sys.modules:
        from IPython import get_ipython

        if getattr(get_ipython(), "kernel", None) is not None:
            return Notebook()
    from bertaccum.cli.options import make_view

    return make_view(quiet=False, log_format="text", seconds=10.0)
