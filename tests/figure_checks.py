"""Checks of figures: the positions of their texts, and their colours."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Tick
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def check_texts(figure: Figure) -> None:
    """Raise AssertionError if a text leaves the figure, or overlaps a text or another panel."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    unseen = {tick.label1 for axes in figure.axes for tick in ticks_out_of_view(axes)}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text not in unseen]
    found = [text for text in texts if text.get_text().strip()]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in found]
    whole = figure.bbox
    for said, box in boxes:
        assert box.x0 >= whole.x0 - 1 and box.x1 <= whole.x1 + 1, said
        assert box.y0 >= whole.y0 - 1 and box.y1 <= whole.y1 + 1, said
    for (said, box), (other, its) in itertools.combinations(boxes, 2):
        assert not overlap(box, its), (said, other)
    for axes in figure.axes:
        label = axes.yaxis.label.get_window_extent(renderer)
        assert label.y0 >= axes.bbox.y0 - 4 and label.y1 <= axes.bbox.y1 + 4, axes.get_ylabel()
    for legend in figure.legends:
        box = legend.get_window_extent(renderer)
        assert not any(overlap(box, axes.bbox) for axes in figure.axes)


def ticks_out_of_view(axes: Axes) -> Iterator[Tick]:
    """Yield the ticks that matplotlib has created but does not draw."""
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not low <= tick.get_loc() <= high:
                yield tick


def overlap(one: Bbox, other: Bbox) -> bool:
    shared = Bbox.intersection(one, other)
    return shared is not None and shared.width > 1 and shared.height > 1


def pixels(figure: Figure, colour: str) -> int:
    """Return the number of pixels of a figure that have nearly this colour."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = np.asarray(canvas.buffer_rgba())[..., :3].astype(int)
    wanted = np.array(to_rgb(colour)) * 255
    return int((np.abs(drawn - wanted).max(axis=2) < 40).sum())
