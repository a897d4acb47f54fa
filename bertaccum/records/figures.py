"""What runs look like: curves against the examples seen, as PNG and SVG.

Figures are made without pyplot, which keeps those of the whole process.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

from bertaccum.metrics import LABELS
from bertaccum.records.series import Series, smoothed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FAINT = 0.35
# Text stays text; lines that differ by less than can be seen are left out.
STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "svg.hashsalt": "bertaccum",
    "path.simplify_threshold": 0.5,
    "agg.path.chunksize": 10_000,
}


def comparison(names: Sequence[str], several: Sequence[Series], span: int) -> dict[str, bytes]:
    """Draw loss, raw and smoothed, and a dev metric against the examples seen, one colour a run.

    Args:
      names: of the runs.
      several: their curves, all with the same metric.
      span: examples that a smoothed loss is a mean of.

    Returns:
      The figure's bytes as `png` and `svg`.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 7), layout="constrained")
        losses, scores = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
        for name, series, colour in zip(names, several, colours(len(names)), strict=True):
            # matplotlib leaves names out that begin with an underscore.
            shown = f" {name}" if name.startswith("_") else name
            draw_loss(losses, series, span, colour, shown)
            draw_scores(scores, series, colour)
        for axes in (losses, scores):
            axes.grid(alpha=0.3)
        losses.set_ylabel(f"training loss (mean over {span:,} examples)")
        losses.legend()
        scores.set_ylabel(f"dev {LABELS[several[0].metric]}")
        label_examples(scores)
        return {kind: as_bytes(figure, kind) for kind in ("png", "svg")}


def draw_loss(axes: Axes, series: Series, span: int, colour: Any, name: str | None = None) -> None:
    """Every update's loss, faint, and the running mean."""
    few = "." if len(series.loss) < 2 else None
    # Those with fewer updates, which are quieter, on top.
    order = 1 + 1 / (1 + len(series.loss))
    faint: dict[str, Any] = {"alpha": _FAINT, "linewidth": 0.6, "marker": few, "zorder": order}
    axes.plot(series.seen, series.loss, color=colour, **faint)
    mean = smoothed(series, span)
    axes.plot(series.seen, mean, color=colour, linewidth=1.8, label=name, marker=few, zorder=3)


def draw_scores(axes: Axes, series: Series, colour: Any) -> None:
    """Draw a point for each evaluation."""
    axes.plot(series.evaluated, series.scores, color=colour, marker="o", markersize=4)


def label_examples(axes: Axes) -> None:
    """What stands below the curves."""
    axes.set_xlabel("examples seen")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")


def colours(count: int) -> list[Any]:
    """As many colours, as different as can be."""
    if count <= 10:
        return list(matplotlib.colormaps["tab10"].colors)[:count]  # type: ignore[attr-defined]
    return [matplotlib.colormaps["turbo"](i / (count - 1)) for i in range(count)]


def as_bytes(figure: Figure, kind: str) -> bytes:
    """The same figure gives the same bytes: nothing in it says when it was made."""
    file = io.BytesIO()
    nothing = ("Date", "Creator", "Format", "Type") if kind == "svg" else ("Software",)
    figure.savefig(file, format=kind, dpi=120, metadata=dict.fromkeys(nothing))
    return file.getvalue()
