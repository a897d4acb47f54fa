"""How good a run's best model is, and where it is wrong, as parts of its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from bertaccum.records.html import element, pairs, section, table

_LONGEST_TEXT = 600


def scores(evaluation: dict[str, Any] | None, mistakes: list[dict[str, Any]]) -> list[Markup]:
    """The sections; without an evaluation one that says so."""
    if evaluation is None:
        missing = "The run has no best model yet: it was not evaluated on dev.tsv so far."
        return [section("Scores", element("p", missing))]
    data = Path(evaluation["data"]).name
    totals = {
        "accuracy": f"{evaluation['accuracy']:.4f}",
        "loss": f"{evaluation['loss']:.4f}",
        "Matthews correlation": f"{evaluation['matthews_correlation']:.4f}",
        "examples": f"{evaluation['examples']:,}",
    }
    confusion = table(_confusion(evaluation), "confusion: rows are labels, columns predictions")
    return [
        section(
            "Scores",
            pairs(totals, f"the best model on {data}"),
            table(map(_class, evaluation["classes"]), "each class"),
            confusion,
        ),
        section("Most wrong", _mistakes(mistakes, data)),
    ]


def _class(row: dict[str, Any]) -> dict[str, str]:
    figures = {name: f"{row[name.lower()]:.4f}" for name in ("precision", "recall", "F1")}
    return {"class": row["name"], **figures, "examples": f"{row['examples']:,}"}


def _confusion(evaluation: dict[str, Any]) -> list[dict[str, object]]:
    """Counts, the darker the more of their label's examples they are."""
    names = [row["name"] for row in evaluation["classes"]]
    rows = zip(names, evaluation["confusion_matrix"], strict=True)
    return [
        {"label \\ predicted": label}
        | {
            # A name of the first column's, too, keeps a column of its own.
            f"{name} " if name == "label \\ predicted" else name: _count(count, sum(counts))
            for name, count in zip(names, counts, strict=True)
        }
        for label, counts in rows
    ]


def _count(count: int, of: int) -> Markup:
    style = f"background: rgba(var(--cell), {0.55 * count / max(of, 1):.2f})"
    return element("td", f"{count:,}", class_="count", style=style)


def _mistakes(mistakes: list[dict[str, Any]], data: str) -> Markup:
    if not mistakes:
        return element("p", f"It got every example of {data} right.")
    rows = [
        {
            "row": f"{found['row']:,}",
            "text": element("td", _shortened(found["text"]), class_="text"),
            "label": found["label"],
            "predicted": found["prediction"],
            "probability": f"{found['probability']:.4f}",
        }
        for found in mistakes
    ]
    return table(rows, f"examples of {data} whose own label the model held least likely")


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + " …"
