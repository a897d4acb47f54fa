"""Figures: every run is visible, and labels do not overlap."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from figure_checks import check_texts, pixels
from writing import write_run

from bertaccum.reporting.charts import learning_rate_curve, loss_curve, score_curve
from bertaccum.reporting.curves import Series, read_series
from bertaccum.reporting.figures import STYLE, draw_runs
from bertaccum.runs.record import read_record

LOSSES = (1 / (1 + np.arange(60) / 10)).tolist()


def series(folder: Path, losses: list[float], **more: float) -> Series:
    accuracies = {update: 0.5 + update / 200 for update in (20, 40, 60)}
    return read_series(read_record(write_run(folder, losses, accuracies=accuracies, **more)))


@pytest.mark.parametrize("count", [2, 3])
def test_coinciding_runs_are_all_visible_and_labelled(tmp_path: Path, count: int) -> None:
    several = [series(tmp_path / str(n), LOSSES) for n in range(count)]
    names = [f"run-{n}" for n in range(count)]
    figure = draw_runs(names, several, 10)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["run-0", *(f"{name} (coincides with run-0)" for name in names[1:])]
    seen = [pixels(figure, f"C{n}") for n in range(count)]
    assert min(seen) > 0.4 * max(seen), seen


@pytest.mark.parametrize(("apart", "coincides"), [(1e-6, True), (0.02, False)])
def test_runs_coincide_if_their_curves_look_the_same(
    tmp_path: Path, apart: float, coincides: bool
) -> None:
    close = [loss + apart for loss in LOSSES]
    figure = draw_runs("ab", [series(tmp_path / "a", LOSSES), series(tmp_path / "b", close)], 10)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["a", "b (coincides with a)" if coincides else "b"]


@pytest.mark.parametrize("names", [["a", "b"], [f"sweeps/{'long-' * 40}{n}" for n in range(12)]])
def test_labels_of_a_comparison_do_not_overlap(tmp_path: Path, names: list[str]) -> None:
    several = [
        series(tmp_path / str(n), [loss + n for loss in LOSSES], batch=400_000)
        for n in range(len(names))
    ]
    with matplotlib.rc_context(STYLE):
        figure = draw_runs(names, several, 1_200_000)
    check_texts(figure)
    labels = "".join(text.get_text() for text in figure.legends[0].get_texts())
    assert all(name in labels.replace("\n", "") for name in names)


def test_charts_of_the_page_are_legible_on_a_phone(tmp_path: Path) -> None:
    """A screen of 390 pixels leaves 340 between the margins, and the SVG is scaled to that."""
    found = series(tmp_path / "r", LOSSES, batch=40_000)
    for chart in (loss_curve(found, 400_000), learning_rate_curve(found), score_curve(found)):
        root = ElementTree.fromstring(str(chart))
        scale = 340 / float(root.attrib["viewBox"].split()[2])
        texts = list(root.iter("{http://www.w3.org/2000/svg}text"))
        sizes = [float(re.findall(r"([\d.]+)px", text.attrib["style"])[0]) for text in texts]
        assert texts and min(sizes) * scale >= 9
