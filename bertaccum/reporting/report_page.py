"""The page of a run: curves, scores, mistakes, plan and recipe in one file of HTML.

It needs nothing but itself: no script, no network, and a policy that forbids both. Reviews are
anybody's text; they are escaped, as everything else is.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from bertaccum.errors import ConfigError
from bertaccum.files import write_text
from bertaccum.metrics import LABELS
from bertaccum.reporting import run_facts
from bertaccum.reporting.charts import learning_rate_curve, loss_curve, score_curve
from bertaccum.reporting.curves import Series, default_span, read_series
from bertaccum.reporting.html import element, pairs, section, table
from bertaccum.reporting.run_record import RUNNING, Record, undamaged
from bertaccum.reporting.score_sections import scores
from bertaccum.sizes import format_size
from bertaccum.version import __version__

# Nothing is fetched and nothing runs, whatever a text says.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_page(
    record: Record,
    evaluation: dict[str, Any] | None,
    mistakes: list[dict[str, Any]],
    path: Path,
) -> None:
    """Writes the page of a run, as `page` makes it.

    Raises:
      ConfigError: it cannot be written there.
      InputError: the run's files are damaged.
    """
    text = page(record, evaluation, mistakes)
    try:
        write_text(path, text)
    except OSError as error:
        raise ConfigError(
            f"`out` {path} cannot be written ({error.strerror or error})", "name another file"
        ) from None


def page(record: Record, evaluation: dict[str, Any] | None, mistakes: list[dict[str, Any]]) -> str:
    """The page of a run.

    Args:
      record: of the run.
      evaluation: of its best model, as `bertaccum.evaluate` returns it; None if there is none.
      mistakes: `row`, `text`, `label`, `prediction` and `probability` of what it got wrong.

    Raises:
      InputError: the run's files are damaged.
    """
    with undamaged(record.paths.path):
        return _page(record, evaluation, mistakes)


def _page(record: Record, evaluation: dict[str, Any] | None, mistakes: list[dict[str, Any]]) -> str:
    series = read_series(record)
    sections = [
        _curves(series),
        *scores(evaluation, mistakes),
        _plan(record),
        section("Options", pairs(run_facts.options(record.config), "as in config.yaml")),
        section("Data and versions", *_origins(record)),
    ]
    looks = files("bertaccum.reporting").joinpath("page.css").read_text("utf-8")
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta http-equiv="Content-Security-Policy" content="{}">').format(_POLICY),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", f"{record.name} - bertaccum"),
        element("style", Markup(looks)),
    )
    foot = element("footer", element("p", f"Made by bertaccum {__version__} from the run folder."))
    body = element("body", _header(record), element("main", *sections), foot)
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _header(record: Record) -> Markup:
    tiles = [
        element("div", element("dt", name), element("dd", value))
        for name, value in run_facts.results(record).items()
        if value
    ]
    said = f"{run_facts.model_name(record)} on {run_facts.data_name(record)}, {record.status}"
    under_way = "The run is under way; this is how it stood when the page was made."
    return element(
        "header",
        element("h1", record.name),
        element("p", said, class_="quiet"),
        *([element("p", under_way)] if record.status == RUNNING else []),
        element("dl", *tiles, class_="tiles"),
    )


def _curves(series: Series) -> Markup:
    if not len(series.updates):
        return section("Curves", element("p", "There is no update yet."))
    span = default_span([series])
    losses = f"Training loss: each update's, and the mean over {span:,} examples"
    drawn = [
        _figure(losses, loss_curve(series, span)),
        _figure("Learning rate", learning_rate_curve(series)),
    ]
    if len(series.scores):
        drawn.append(_figure(f"On dev.tsv: {LABELS[series.metric]}", score_curve(series)))
    rows = [run_facts.shown_point(point, series.metric) for point in run_facts.points(series, span)]
    caption = f"along the run; training loss: mean over the last {span:,} examples"
    along = table(rows[0], [list(row.values()) for row in rows], caption)
    numbers = element("details", element("summary", "The curves in numbers"), along)
    return section("Curves", element("div", *drawn, class_="curves"), numbers)


def _figure(caption: str, drawing: Markup) -> Markup:
    return element("figure", element("figcaption", caption), drawing)


def _plan(record: Record) -> Markup:
    parts = [pairs(run_facts.plan(record), "how windows are cut")]
    if candidates := record.plan.get("candidates"):
        rows = [_candidate(row, record.plan) for row in candidates]
        considered = [list(row.values()) for row in rows]
        parts.append(table(rows[0], considered, "what was considered; * was taken"))
    return section("Plan", *parts)


def _candidate(row: dict[str, Any], plan: dict[str, Any]) -> dict[str, str]:
    taken = all(row.get(key) == plan.get(key) for key in ("micro_batch", "recompute"))
    speed, measured = row.get("examples_per_second"), row.get("measured_peak_bytes")
    return {
        "micro-batch x steps": f"{row.get('micro_batch')} x {row.get('accumulation_steps')}"
        + " *" * taken,
        "recompute": str(row.get("recompute")),
        "predicted": format_size(row.get("predicted_peak_bytes") or 0),
        "measured": format_size(measured) if measured else "",
        "examples/s": f"{speed:.1f}" if speed else "",
        "fits": "yes" if row.get("fits") else "no",
    }


def _origins(record: Record) -> list[Markup]:
    data = run_facts.digests(record) | run_facts.truncation(record)
    found = [pairs(data, f"what {record.name} began with")]
    if versions := run_facts.versions(record):
        found.append(pairs(versions, "what it was made with"))
    times = {
        "whole run": f"{record.seconds:,.1f} s",
        "updates": f"{run_facts.trained(record):,.1f} s",
        "planning": f"{record.plan.get('planning_seconds') or 0:,.1f} s",
    }
    return [*found, pairs(times, "times")]
