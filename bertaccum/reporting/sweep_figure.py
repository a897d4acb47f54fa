"""The heat map of a grid search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from bertaccum.options.metrics import LABELS, LOWER_IS_BETTER
from bertaccum.reporting.figures import STYLE, files_of
from bertaccum.system.atomic import write_bytes

# The options on the axes if the grid contains them.
_AXES = ("learning_rate", "target_batch")


def write_heat_map(
    folder: Path, grid: Mapping[str, Sequence[Any]], result: dict[str, Any]
) -> list[str]:
    """Draw the best mean score for each pair of values of two options, over all other options."""
    varied = sorted(grid, key=lambda name: (name not in _AXES, len(grid[name]) == 1))
    down, across = (varied * 2)[:2]
    values = np.full((len(grid[down]), len(grid[across])), np.nan)
    pick = np.fmin if result["best_by"] in LOWER_IS_BETTER else np.fmax
    for cell in result["cells"]:
        if cell["mean"] is not None:
            place = tuple(list(grid[name]).index(cell["options"][name]) for name in (down, across))
            values[place] = pick(values[place], cell["mean"])
    if np.isnan(values).all():
        return []
    with matplotlib.rc_context(STYLE):
        figures = files_of(_drawn(values, down, across, grid, LABELS[result["best_by"]]), "sweep")
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
            axes.text(column, row, f"{value:.4f}", ha="center", va="center", color=color)
    figure.colorbar(image, label=f"dev {metric}, mean over seeds")
    return figure
