"""Results of the Python API as HTML and figures, which notebooks show."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from bertaccum.reporting import figures, run_facts
from bertaccum.reporting.candidates import candidate_cells
from bertaccum.reporting.curves import default_span, read_series
from bertaccum.reporting.rendering import render
from bertaccum.reporting.report_page import curves, shown_scores
from bertaccum.runs.record import read_record, undamaged
from bertaccum.system.sizes import known_size


def run_html(run: Path) -> str:
    """Return the results and curves of a run as HTML.

    Raises:
      InputError: The run folder is missing or damaged.
    """
    record = read_record(run)
    with undamaged(run):
        series = read_series(record)
        span = default_span([series])
        facts = run_facts.facts(record, series, span)
        title = f"{record.name}: {facts['model']} on {facts['data']}, {record.status}"
        return _html(title, facts=facts["results"], charts=curves(series, span))


def evaluation_html(evaluation: dict[str, Any]) -> str:
    """Return the scores of `EvalResult.record()` as HTML."""
    title = f"{Path(evaluation['run']).name}, evaluated on {Path(evaluation['data']).name}"
    return _html(title, scores=shown_scores(evaluation))


def plan_html(plan: dict[str, Any], chosen: str) -> str:
    """Return a plan and its candidates as HTML.

    Args:
      plan: The content of plan.json.
      chosen: The chosen plan as a text.
    """
    speed, reason = plan.get("examples_per_second"), plan.get("why") or ""
    facts = {
        "reason": reason.replace("`", ""),
        "peak memory of a real update": known_size(plan.get("peak_memory_bytes")),
        "speed": f"{speed:,.1f} examples/s" if speed else "",
    }
    candidates = [candidate_cells(row, plan) for row in plan.get("candidates") or []]
    return _html(chosen, facts=facts, candidates=candidates)


def run_figure(run: Path) -> Figure:
    """Draw the training loss and the dev metric of a run against the number of examples seen.

    Raises:
      InputError: The run folder is missing or damaged.
    """
    record = read_record(run)
    with undamaged(run):
        series = read_series(record)
    fonts, _ = figures.fonts_for(record.name)
    with matplotlib.rc_context(figures.STYLE | {"font.family": fonts}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure = figures.draw_runs([record.name], [series], default_span([series]))
    # IPython knows how to show a figure only after pyplot has been used.
    setattr(figure, "_repr_png_", lambda: figures.as_bytes(figure, "png"))  # noqa: B010
    return figure


def _html(title: str, **parts: Any) -> str:
    nothing = dict.fromkeys(("facts", "charts", "scores", "candidates"))
    return render("notebook.html.j2", **(nothing | parts), title=title)
