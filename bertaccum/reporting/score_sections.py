"""How good a run's best model is, and where it is wrong, as parts of its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from bertaccum.metrics import LABELS, METRICS, baseline, one_class, shown
from bertaccum.reporting.html import element, pairs, section, table

_LONGEST_TEXT = 600


def scores(evaluation: dict[str, Any] | None, mistakes: list[dict[str, Any]]) -> list[Markup]:
    """The sections; without an evaluation one that says so."""
    if evaluation is None:
        missing = "The run has no best model yet: it was not evaluated on dev.tsv so far."
        return [section("Scores", element("p", missing))]
    data = Path(evaluation["data"]).name
    totals = {LABELS[name]: shown(evaluation, name) for name in METRICS}
    totals |= {"majority baseline": baseline(evaluation)}
    totals |= {"examples": f"{evaluation['examples']:,}"}
    known = {name: value for name, value in totals.items() if value}
    warning = one_class(evaluation)
    return [
        section(
            "Scores",
            pairs(known, f"the best model on {data}"),
            *([element("p", f"On {data}, {warning}.")] if warning else []),
            _classes(evaluation["classes"]),
            _confusion(evaluation),
        ),
        section("Most wrong", _mistakes(mistakes, data)),
    ]


def _classes(classes: list[dict[str, Any]]) -> Markup:
    scores = ("precision", "recall", "f1")
    rows = [
        (row["name"], *(f"{row[score]:.4f}" for score in scores), f"{row['examples']:,}")
        for row in classes
    ]
    return table(("class", "precision", "recall", "F1", "examples"), rows, "each class")


def _confusion(evaluation: dict[str, Any]) -> Markup:
    """Counts, the darker the more of their label's examples they are."""
    names = [row["name"] for row in evaluation["classes"]]
    rows = [
        (name, *(_count(count, sum(counts)) for count in counts))
        for name, counts in zip(names, evaluation["confusion_matrix"], strict=True)
    ]
    caption = "confusion: rows are labels, columns predictions"
    return table(("label \\ predicted", *names), rows, caption)


def _count(count: int, of: int) -> Markup:
    style = f"background: rgba(var(--cell), {0.55 * count / max(of, 1):.2f})"
    return element("td", f"{count:,}", class_="count", style=style)


def _mistakes(mistakes: list[dict[str, Any]], data: str) -> Markup:
    if not mistakes:
        return element("p", f"It got every example of {data} right.")
    head = ("row", "text", "label", "predicted", "probability")
    rows = [
        (
            f"{found['row']:,}",
            element("td", _shortened(found["text"]), class_="text"),
            found["label"],
            found["prediction"],
            f"{found['probability']:.4f}",
        )
        for found in mistakes
    ]
    return table(head, rows, f"examples of {data} whose own label the model held least likely")


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + " …"
