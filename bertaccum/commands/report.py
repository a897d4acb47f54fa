"""`bertaccum report`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bertaccum import api
from bertaccum.commands.options import options, shown
from bertaccum.config import ReportConfig
from bertaccum.display import text

if TYPE_CHECKING:
    from bertaccum.display.view import View


@click.command("report")
@click.argument("run", type=click.Path(), default="runs/latest")
@options(ReportConfig)
@shown
def make_page(view: View, run: str, **values: Any) -> None:
    """Make a page of a run, with curves, scores and mistakes.

    It is one HTML file that needs no network and no other file. The best model is evaluated for
    it. RUN is a run folder, by default runs/latest.

    \b
    Examples:
      bertaccum report
      bertaccum report runs/20260102-030405 --split test
      bertaccum report runs/latest --out latest.html
    """
    with view:
        page = api.report(run, progress=view, **values)
    text.result(f"{page}: written")
