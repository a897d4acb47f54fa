"""The report page of a run: curves, scores, mistakes, plan and options in one HTML file.

The page is self-contained; its security policy forbids scripts and network access.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from bertaccum.options.metrics import LABELS, MAX_CLASSES, confusions, score_on, scores, warning
from bertaccum.reporting import charts, run_facts
from bertaccum.reporting.candidates import candidate_cells
from bertaccum.reporting.curves import Series, default_span, read_series
from bertaccum.reporting.rendering import render
from bertaccum.runs.record import RUNNING, Record, undamaged
from bertaccum.system.phrases import counted
from bertaccum.version import __version__

# If there are very many classes, the page lists this many of them, and as many kinds of mistakes.
_MAX_ROWS = 100


def page(
    record: Record,
    evaluation: dict[str, Any] | None,
    mistakes: list[dict[str, Any]],
    blanks: Sequence[dict[str, str]] = (),
) -> str:
    """Return the report page of a run as HTML; `evaluation` is None without a best model.

    Args:
      mistakes: What `most_wrong` returned.
      blanks: For a model of masked tokens, what `MaskFiller.blanks` returned.
    """
    with undamaged(record.paths.path):
        series = read_series(record)
        span = default_span([series])
        shared = run_facts.facts(record, series, span)
        return render(
            "report.html.j2",
            **(shared | {"results": _test_score(record, evaluation) | shared["results"]}),
            status=record.status,
            under_way=record.status == RUNNING,
            charts=curves(series, span),
            scores=None if evaluation is None else shown_scores(evaluation),
            mistakes=mistakes,
            blanks=blanks,
            candidates=[
                candidate_cells(row, record.plan) for row in record.plan.get("candidates") or []
            ],
            options=run_facts.options(record.config),
            times={
                "training time": f"{record.seconds:,.1f} s",
                "updates": f"{run_facts.trained(record):,.1f} s",
                "planning": f"{record.plan.get('planning_seconds') or 0:,.1f} s",
            },
            version=__version__,
        )


def _test_score(record: Record, evaluation: dict[str, Any] | None) -> dict[str, str]:
    """Return the score on the page's split and its baseline; dev.tsv's are among the results."""
    split = "dev" if evaluation is None else Path(evaluation["data"]).stem
    if evaluation is None or split == "dev":
        return {}
    return score_on(split, evaluation, record.best_by)


def curves(series: Series, span: int) -> dict[str, Markup]:
    """Return the curves of a run as SVG elements, by caption; none before the first update."""
    if not len(series.updates):
        return {}
    loss = f"Training loss of each update, and its mean over {counted(span, 'example')}"
    rate, score = "Learning rate", f"On dev.tsv: {LABELS[series.metric]}"
    drawn = {loss: charts.loss_curve(series, span), rate: charts.learning_rate_curve(series)}
    return drawn | ({score: charts.score_curve(series)} if len(series.scores) else {})


def shown_scores(evaluation: dict[str, Any]) -> dict[str, Any]:
    """Return what the macro `score_tables` shows of an evaluation."""
    bins, counts = evaluation.get("reliability"), evaluation.get("confusion_matrix")
    classes = evaluation.get("classes") or []
    names = evaluation.get("confusion_classes") or [row["name"] for row in classes]
    is_wide = len(names) > MAX_CLASSES
    shown = sorted(classes, key=lambda row: row["f1"])[:_MAX_ROWS] if is_wide else classes
    return {
        "data": Path(evaluation["data"]).name,
        "unread": bool(evaluation.get("unread_words")),  # A mistake in such a word is not shown.
        "totals": scores(evaluation) | {"examples": f"{evaluation['examples']:,}"},
        "warning": warning(evaluation),
        "classes": shown,
        "more_classes": len(classes) - len(shown),
        "names": names,
        "confusion": None if is_wide else counts,
        "mistakes": confusions(names, counts)[:_MAX_ROWS] if is_wide and counts else [],
        "reliability": charts.reliability_curve(bins) if bins else None,
    }
