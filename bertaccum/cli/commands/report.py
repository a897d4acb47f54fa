"""`bertaccum report`."""

from __future__ import annotations

from typing import Any

from bertaccum import api
from bertaccum.cli.display import sentences
from bertaccum.cli.display.view import View
from bertaccum.cli.options import command, options, run_argument, shown
from bertaccum.cli.shared import announce_run, announce_split
from bertaccum.options.commands import ReportConfig


@command("report")
@run_argument
@options(ReportConfig)
@shown
def make_page(view: View, **values: Any) -> None:
    """Write an HTML page about a run, with curves, scores and mistakes.

    The page is one file that needs no network. It includes an evaluation of the best model, by
    default on the same split as `bertaccum eval`. RUN is the run folder; it is a shorter form of
    --run.

    \b
    Examples:
      bertaccum report
      bertaccum report --run runs/20260102-030405 --split dev
      bertaccum report --out latest.html
    """
    with view:
        record = announce_run(view, values["run"])
        if record.best is not None:
            values["split"] = announce_split(view, record, values["split"])
        page = api.report(progress=view, **values)
    sentences.result(f"{page}: written")
