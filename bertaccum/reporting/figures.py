"""What runs look like: curves against the examples seen, as PNG and SVG.

Figures are made without pyplot, which keeps those of the whole process.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from bertaccum.metrics import LABELS
from bertaccum.reporting.curves import Series, smoothed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FAINT = 0.35
_LABEL_WIDTH = 110  # characters, in a figure of 10 inches
_DASH = 6.0  # in widths of the line
# Text stays text; lines that differ by less than can be seen are left out.
STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "svg.hashsalt": "bertaccum",
    "path.simplify_threshold": 0.5,
    "agg.path.chunksize": 10_000,
}


@dataclass(frozen=True)
class Look:
    """How a run is drawn.

    Args:
      colour: of its lines.
      label: its line in the legend.
      position: among the runs whose curves coincide, from 0.
      of: how many those are.
    """

    colour: Any
    label: str = ""
    position: int = 0
    of: int = 1

    @property
    def dashes(self) -> Any:
        """matplotlib's line style; the dashes of coinciding runs fill each other's gaps."""
        if self.of == 1:
            return "solid"
        return (-self.position * _DASH, (_DASH, _DASH * (self.of - 1)))


def coincide(one: Series, other: Series) -> bool:
    """Return whether nobody could tell the curves of two runs apart in a figure."""
    return _close(one.seen, other.seen, one.loss, other.loss) and _close(
        one.evaluated, other.evaluated, one.scores, other.scores
    )


def _close(x: np.ndarray, other_x: np.ndarray, y: np.ndarray, other_y: np.ndarray) -> bool:
    """Return whether two curves differ by no more than 0.5 % of their range, anywhere."""
    if not np.array_equal(x, other_x):
        return False
    finite = y[np.isfinite(y)]
    height = float(np.ptp(finite)) if len(finite) else 0.0
    return bool(np.allclose(y, other_y, rtol=0, atol=0.005 * height, equal_nan=True))


def comparison(names: Sequence[str], several: Sequence[Series], span: int) -> dict[str, bytes]:
    """Return the figure of several runs as `png` and `svg`; the arguments are `draw_runs`' own."""
    with matplotlib.rc_context(STYLE):
        figure = draw_runs(names, several, span)
        return {kind: as_bytes(figure, kind) for kind in ("png", "svg")}


def draw_runs(names: Sequence[str], several: Sequence[Series], span: int) -> Figure:
    """Draw loss, raw and smoothed, and a dev metric against the examples seen, one colour a run.

    Runs whose curves coincide are drawn in alternate dashes, and the legend says so.

    Args:
      names: of the runs.
      several: their curves, all with the same metric.
      span: examples that a smoothed loss is a mean of.
    """
    looks = _looks(names, several)
    lines = sum(look.label.count("\n") + 1 for look in looks)
    figure = Figure(figsize=(10, 7 + 0.23 * lines), layout="constrained")
    losses, scores = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    for series, look in zip(several, looks, strict=True):
        draw_loss(losses, series, span, look)
        draw_scores(scores, series, look)
    for axes in (losses, scores):
        axes.grid(alpha=0.3)
    losses.set_ylabel(f"training loss (mean over {span:,} examples)")
    # Solid samples: a dash may be longer than a sample.
    samples = [Line2D([], [], color=look.colour, linewidth=1.8, label=look.label) for look in looks]
    figure.legend(handles=samples, loc="outside lower left")
    scores.set_ylabel(f"dev {LABELS[several[0].metric]}")
    label_examples(scores)
    return figure


def _looks(names: Sequence[str], several: Sequence[Series]) -> list[Look]:
    """Return how each run is drawn: the members of a group of coinciding runs share its dashes."""
    first = [next(i for i, one in enumerate(several) if coincide(one, s)) for s in several]
    looks = []
    for number, colour in enumerate(colours(len(names))):
        position, size = first[:number].count(first[number]), first.count(first[number])
        # matplotlib leaves out names that begin with an underscore.
        label = f" {names[number]}" if names[number].startswith("_") else names[number]
        if position:
            label += f" (coincides with {names[first[number]]})"
        looks.append(Look(colour, _wrapped(label), position, size))
    return looks


def _wrapped(label: str) -> str:
    return textwrap.fill(label, _LABEL_WIDTH, break_on_hyphens=False, drop_whitespace=False)


def draw_loss(axes: Axes, series: Series, span: int, look: Look) -> None:
    """Every update's loss, faint, and the running mean."""
    few = "." if len(series.loss) < 2 else None
    # Those with fewer updates, which are quieter, on top.
    order = 1 + 1 / (1 + len(series.loss))
    faint: dict[str, Any] = {"alpha": _FAINT, "linewidth": 0.6, "marker": few, "zorder": order}
    axes.plot(series.seen, series.loss, color=look.colour, **faint)
    mean: dict[str, Any] = {"linewidth": 1.8, "marker": few, "zorder": 3}
    axes.plot(series.seen, smoothed(series, span), linestyle=look.dashes, color=look.colour, **mean)


def draw_scores(axes: Axes, series: Series, look: Look) -> None:
    """Draw a point for each evaluation; where runs coincide, the later one's is the smaller."""
    size = 4 + 3 * (look.of - 1 - look.position)
    points: dict[str, Any] = {"marker": "o", "markersize": size, "linestyle": look.dashes}
    axes.plot(series.evaluated, series.scores, color=look.colour, **points)


def label_examples(axes: Axes) -> None:
    """What stands below the curves."""
    axes.set_xlabel("examples seen")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_major_locator(MaxNLocator(_most_ticks(axes), integer=True))


def _most_ticks(axes: Axes) -> int:
    """Return how many labels such as 1,000,000 have room side by side."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    return max(int(figure.get_figwidth()), 2)


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
