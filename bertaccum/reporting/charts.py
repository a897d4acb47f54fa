"""Curves of a run as SVG elements that use the colors and typeface of the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

from bertaccum.options.metrics import LABELS
from bertaccum.reporting import figures
from bertaccum.reporting.curves import Series
from bertaccum.system.phrases import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
# Placeholder colors for matplotlib, which are later replaced with the CSS variables of the page.
_INK, _ACCENT, _GRID = "#010203", "#040506", "#070809"
_COLORS = {_INK: "var(--ink)", _ACCENT: "var(--accent)", _GRID: "var(--line)"}
# Width and height of a chart in inches. It is drawn about as wide as a phone shows it (340 pixels),
# so that its text is not scaled down.
_INCHES = (4.6, 2.7)
_LINE = figures.LineStyle(_ACCENT)
_PAGE_STYLE = figures.STYLE | {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), _GRID),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
}


def loss_curve(series: Series, span: int) -> Markup:
    """Plot the loss of every update, and the running mean of the loss, against examples seen."""
    total, mean = counted(series.total, "example"), counted(span, "example")
    label = f"Training loss over {total}, and its mean over {mean}"
    return _curve("loss", label, series, lambda axes: figures.draw_loss(axes, series, span, _LINE))


def learning_rate_curve(series: Series) -> Markup:
    """Plot the learning rate against examples seen."""

    def draw(axes: Axes) -> None:
        axes.plot(series.seen, series.learning_rate, color=_ACCENT, linewidth=1.8)
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))

    return _curve("rate", f"Learning rate over {counted(series.total, 'example')}", series, draw)


def score_curve(series: Series) -> Markup:
    """Plot the dev metric against examples seen."""
    label = f"{LABELS[series.metric]} on dev.tsv at {len(series.scores):,} evaluations"
    return _curve("score", label, series, lambda axes: figures.draw_scores(axes, series, _LINE))


def reliability_curve(bins: list[dict[str, float]]) -> Markup:
    """Plot the accuracy of each bin of `scoring.reliability` against its mean confidence."""
    label = f"Accuracy against confidence in {len(bins)} bins"
    names = "confidence", "accuracy", "examples"
    confidences, accuracies, examples = ([row[name] for row in bins] for name in names)

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=_INK, linewidth=0.8, linestyle="--")
        axes.plot(confidences, accuracies, color=_ACCENT, linewidth=1.4)
        sizes = [12 + 90 * count / max(examples) for count in examples]
        axes.scatter(confidences, accuracies, sizes, color=_ACCENT)
        axes.set(xlabel="confidence", ylabel="accuracy", ylim=(-0.03, 1.03))

    return _svg("reliability", label, draw)


def _curve(name: str, label: str, series: Series, draw: Callable[[Axes], None]) -> Markup:
    """Return a plot against examples seen."""

    def draw_labeled(axes: Axes) -> None:
        draw(axes)
        figures.label_examples(axes)
        axes.set_xlim(right=series.total * 1.03)

    return _svg(name, label, draw_labeled)


def _svg(name: str, label: str, draw: Callable[[Axes], None]) -> Markup:
    """Return a plot as an SVG element without external references; its ids begin with `name`."""
    with matplotlib.rc_context(_PAGE_STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=_INCHES, layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.grid()
        figure.patch.set_visible(False)
        axes.patch.set_visible(False)
        root = ElementTree.fromstring(figures.as_bytes(figure, "svg"))
    _make_part_of_page(root, name, label)
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    text = ElementTree.tostring(root, encoding="unicode")
    for color, own in _COLORS.items():
        text = text.replace(color, own)
    return Markup(text)


def _make_part_of_page(root: ElementTree.Element, name: str, label: str) -> None:
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.attrib |= {"role": "img", "aria-label": label}
    names = {element.get("id") for element in root.iter()} - {None}
    for element in root.iter():
        if element.get("id"):
            element.set("id", f"{name}-{element.get('id')}")
        for key, value in element.attrib.items():
            target = value.removeprefix("url(").removesuffix(")").removeprefix("#")
            if target in names and "#" in value:
                element.set(key, value.replace(f"#{target}", f"#{name}-{target}"))
