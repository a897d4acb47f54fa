"""Figures, as PNG and SVG, of the curves of runs, of the learning-rate finder and of sweeps.

Figures are created without pyplot, which keeps global state.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from bertaccum.options.metrics import LABELS, LOWER_IS_BETTER, written
from bertaccum.reporting.curves import Series, smoothed
from bertaccum.system.atomic import write_bytes
from bertaccum.system.phrases import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_OWN_FONT = "DejaVu Sans"
# This font draws a box with a description for every character.
_BOXES = "Last Resort"
_FAINT = 0.35
_LABEL_WIDTH = 110  # in characters, for a figure 10 inches wide
_DASH = 6.0  # in line widths
# Write text as text in SVG, and drop points that make no visible difference.
STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "svg.hashsalt": "bertaccum",
    "path.simplify_threshold": 0.5,
    "agg.path.chunksize": 10_000,
}


@dataclass(frozen=True)
class LineStyle:
    """The style in which a run is drawn."""

    color: Any  # The color of the lines.
    label: str = ""  # The label in the legend.
    # The 0-based position of the run among those whose curves coincide with its own.
    position: int = 0
    of: int = 1  # The number of these runs; 1 if no other run's curves coincide.

    @property
    def dashes(self) -> Any:
        """The line style for matplotlib. The dashes of coinciding runs fill each other's gaps."""
        if self.of == 1:
            return "solid"
        return (-self.position * _DASH, (_DASH, _DASH * (self.of - 1)))


def coincide(one: Series, other: Series) -> bool:
    """Return whether the curves of two runs look the same in a figure."""
    losses = _close(one.seen, other.seen, one.loss, other.loss)
    return losses and _close(one.evaluated, other.evaluated, one.scores, other.scores)


def _close(x: np.ndarray, other_x: np.ndarray, y: np.ndarray, other_y: np.ndarray) -> bool:
    """Return whether two curves agree everywhere within 0.5% of their range."""
    if not np.array_equal(x, other_x):
        return False
    finite = y[np.isfinite(y)]
    height = float(np.ptp(finite)) if len(finite) else 0.0
    return bool(np.allclose(y, other_y, rtol=0, atol=0.005 * height, equal_nan=True))


def comparison(
    names: Sequence[str], several: Sequence[Series], span: int, models: Sequence[dict[str, Any]]
) -> tuple[dict[str, bytes], str]:
    """Return the figures of `draw_runs` and `draw_models` as PNG and SVG.

    The second result contains the characters of the names that no font has.
    """
    fonts, missing = fonts_for("".join(names))
    with matplotlib.rc_context(STYLE | {"font.family": fonts}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figures = files_of(draw_runs(names, several, span), "compare")
        figures |= files_of(draw_models(models), "compare-size") if models else {}
        return figures, missing


def draw_runs(names: Sequence[str], several: Sequence[Series], span: int) -> Figure:
    """Draw the raw and smoothed loss and a dev metric against examples seen, one color per run.

    Runs whose curves coincide are drawn with alternating dashes, and the legend says so.
    """
    styles = _line_styles(names, several)
    lines = sum(line.label.count("\n") + 1 for line in styles)
    figure = Figure(figsize=(10, 7 + 0.23 * lines), layout="constrained")
    losses, scores = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    for series, line in zip(several, styles, strict=True):
        draw_loss(losses, series, span, line)
        draw_scores(scores, series, line)
    for axes in (losses, scores):
        axes.grid(alpha=0.3)
    losses.set_ylabel(f"training loss (mean over {counted(span, 'example')})")
    # Legend samples are solid, because a dash may be longer than a sample.
    samples = [Line2D([], [], color=line.color, linewidth=1.8, label=line.label) for line in styles]
    figure.legend(handles=samples, loc="outside lower left")
    scores.set_ylabel(f"dev {LABELS[several[0].metric]}")
    label_examples(scores)
    return figure


def draw_models(models: Sequence[dict[str, Any]]) -> Figure:
    """Draw the score of each model against its size and its latency.

    The points of a run, such as those of its weights and of its int8 model, are connected.

    Args:
      models: Models as in the result of `compare`.
    """
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    names = list(dict.fromkeys(one["run"] for one in models))
    kinds = [
        ("model_bytes", 2**20, "size of the weights (MiB)"),
        ("milliseconds_per_text", 1, "time for one text (ms)"),
    ]
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (key, unit, label) in zip(panels, kinds, strict=True):
        for name, color in zip(names, colors(len(names)), strict=True):
            own = [one for one in models if one["run"] == name]
            x, y = [one[key] / unit for one in own], [one["value"] for one in own]
            axes.plot(x, y, "o-", color=color, linewidth=0.8, label=f" {name}")
            for one, *place in zip(own, x, y, strict=True):
                where: dict[str, Any] = {"xytext": (0, 5), "textcoords": "offset points"}
                where |= {"horizontalalignment": "center", "fontsize": 8, "color": color}
                axes.annotate(f" {one['evaluation']}", place, **where)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.margins(0.15)
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel(LABELS[models[0]["metric"]])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left")
    return figure


def _line_styles(names: Sequence[str], several: Sequence[Series]) -> list[LineStyle]:
    """Return the style of each run; coinciding runs get alternating dashes."""
    first = [next(i for i, one in enumerate(several) if coincide(one, s)) for s in several]
    styles = []
    for number, color in enumerate(colors(len(names))):
        position, size = first[:number].count(first[number]), first.count(first[number])
        # matplotlib omits labels that begin with an underscore.
        label = f" {names[number]}" if names[number].startswith("_") else names[number]
        if position:
            label += f" (coincides with {names[first[number]]})"
        wrapped = textwrap.fill(label, _LABEL_WIDTH, break_on_hyphens=False, drop_whitespace=False)
        styles.append(LineStyle(color, wrapped, position, size))
    return styles


def draw_loss(axes: Axes, series: Series, span: int, line: LineStyle) -> None:
    """Draw the loss of every update, faintly, and its running mean."""
    few = "." if len(series.loss) < 2 else None
    # Draw runs with fewer updates, which are less noisy, on top.
    order = 1 + 1 / (1 + len(series.loss))
    faint: dict[str, Any] = {"alpha": _FAINT, "linewidth": 0.6, "marker": few, "zorder": order}
    axes.plot(series.seen, series.loss, color=line.color, **faint)
    mean: dict[str, Any] = {"linewidth": 1.8, "marker": few, "zorder": 3}
    axes.plot(series.seen, smoothed(series, span), linestyle=line.dashes, color=line.color, **mean)


def draw_scores(axes: Axes, series: Series, line: LineStyle) -> None:
    """Draw a point for each evaluation; if runs coincide, later ones have smaller points."""
    size = 4 + 3 * (line.of - 1 - line.position)
    points: dict[str, Any] = {"marker": "o", "markersize": size, "linestyle": line.dashes}
    axes.plot(series.evaluated, series.scores, color=line.color, **points)


def label_examples(axes: Axes) -> None:
    """Label the x-axis with the number of examples seen."""
    axes.set_xlabel("examples seen")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    # Labels such as 1,000,000 must fit side by side.
    ticks = MaxNLocator(max(int(figure.get_figwidth()), 2), integer=True)
    axes.xaxis.set_major_locator(ticks)


def colors(count: int) -> list[Any]:
    """Return `count` distinct colors."""
    if count <= 10:
        return list(matplotlib.colormaps["tab10"].colors)[:count]  # type: ignore[attr-defined]
    return [matplotlib.colormaps["turbo"](i / (count - 1)) for i in range(count)]


def rate_figure(result: dict[str, Any]) -> dict[str, bytes]:
    """Return a figure, as PNG and SVG, of the loss and the suggested learning rate."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        rates, smoothed = result["rates"][:-1], np.array(result["smoothed_losses"])
        axes.plot(rates, result["losses"][1:], color="C0", alpha=0.35, linewidth=0.6)
        axes.plot(rates, smoothed, color="C0", linewidth=1.8)
        if (suggested := result["learning_rate"]) is not None:
            axes.axvline(suggested, color="C1", linestyle="--")
            axes.annotate(f" {suggested:.1e}", (suggested, np.nanmax(smoothed)), color="C1")
        axes.set_xscale("log")
        # One loss after divergence would flatten the rest of the curve.
        low, high = np.nanmin(smoothed), np.nanmax(smoothed)
        axes.set_ylim(low - 0.2 * (high - low), high + 0.2 * (high - low))
        axes.set_xlabel("learning rate")
        axes.set_ylabel("training loss, of each update and smoothed")
        axes.grid(alpha=0.3)
        return files_of(figure, "learning_rate")


def files_of(figure: Figure, stem: str) -> dict[str, bytes]:
    """Return a figure as PNG and SVG, by file name."""
    return {f"{stem}.{kind}": as_bytes(figure, kind) for kind in ("png", "svg")}


def as_bytes(figure: Figure, kind: str) -> bytes:
    """Return a figure as bytes, without a date, so that equal figures give equal bytes."""
    file = io.BytesIO()
    nothing = ("Date", "Creator", "Format", "Type") if kind == "svg" else ("Software",)
    figure.savefig(file, format=kind, dpi=120, metadata=dict.fromkeys(nothing))
    return file.getvalue()


def fonts_for(text: str) -> tuple[list[str], str]:
    """Return installed fonts that together have the characters of a text, such as Chinese ones.

    The first one is matplotlib's own font. Also return the characters that none of them has.
    """
    missing, families = set(text.replace(" ", "")), [_OWN_FONT]
    missing -= _characters(font_manager.findfont(_OWN_FONT))
    for font in font_manager.fontManager.ttflist:
        if not missing:
            break
        if font.style == "normal" and font.weight == 400 and not font.name.startswith(_BOXES):
            found = missing & _characters(font.fname)
            families += [font.name] * bool(found)
            missing -= found
    return families, "".join(sorted(missing))


def _characters(path: str) -> set[str]:
    """Return the characters of a font file; none if it cannot be read."""
    try:
        return set(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):
        return set()


# The options on the axes if the grid contains them.
_AXES = ("learning_rate", "target_batch")


def write_heat_map(
    folder: Path, grid: Mapping[str, Sequence[Any]], result: dict[str, Any]
) -> list[str]:
    """Draw the best mean score for each pair of values of two options, over all other options.

    With successive halving, only the combinations of a pair that were trained furthest count.
    """
    varied = sorted(grid, key=lambda name: (name not in _AXES, len(grid[name]) == 1))
    down, across = (varied * 2)[:2]
    values = np.full((len(grid[down]), len(grid[across])), np.nan)
    pick = np.fmin if result["best_by"] in LOWER_IS_BETTER else np.fmax
    trained = np.zeros_like(values)
    for cell in result["cells"]:
        place = tuple(list(grid[name]).index(cell["options"][name]) for name in (down, across))
        if cell["mean"] is not None and cell["fraction"] >= trained[place]:
            further = cell["fraction"] > trained[place]
            values[place] = cell["mean"] if further else pick(values[place], cell["mean"])
            trained[place] = cell["fraction"]
    if np.isnan(values).all():
        return []
    with matplotlib.rc_context(STYLE):
        figures = files_of(_drawn(values, down, across, grid, result["best_by"]), "sweep")
    for name, contents in figures.items():
        write_bytes(folder / name, contents)
    return [str(folder / name) for name in figures]


def _drawn(
    values: np.ndarray, down: str, across: str, grid: Mapping[str, Sequence[Any]], metric: str
) -> Figure:
    size = (2 + 1.2 * values.shape[1], 2 + 0.7 * values.shape[0])
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, aspect="auto", cmap="viridis")
    axes.set_xticks(range(values.shape[1]), [str(value) for value in grid[across]])
    axes.set_yticks(range(values.shape[0]), [str(value) for value in grid[down]])
    axes.set_xlabel(across.replace("_", " "))
    axes.set_ylabel(down.replace("_", " "))
    middle = float(np.nanmin(values) + np.nanmax(values)) / 2
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            color = "white" if value < middle else "black"
            axes.text(column, row, written(value, metric), ha="center", va="center", color=color)
    figure.colorbar(image, label=f"dev {LABELS[metric]}, mean over seeds")
    return figure
