"""The figure of the learning-rate finder."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from bertaccum.reporting.figures import STYLE, as_bytes


def rate_figure(found: dict[str, Any]) -> dict[str, bytes]:
    """Draw the loss against the learning rate, and mark the suggested rate.

    Args:
      found: Result of `rate_finder.find_rate`.

    Returns:
      The figure as PNG and SVG, by file name.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        rates, smoothed = found["rates"][:-1], np.array(found["smoothed_losses"])
        axes.plot(rates, found["losses"][1:], color="C0", alpha=0.35, linewidth=0.6)
        axes.plot(rates, smoothed, color="C0", linewidth=1.8)
        if (suggested := found["learning_rate"]) is not None:
            axes.axvline(suggested, color="C1", linestyle="--")
            axes.annotate(f" {suggested:.1e}", (suggested, np.nanmax(smoothed)), color="C1")
        axes.set_xscale("log")
        # One loss after divergence would flatten the rest of the curve.
        low, high = np.nanmin(smoothed), np.nanmax(smoothed)
        axes.set_ylim(low - 0.2 * (high - low), high + 0.2 * (high - low))
        axes.set_xlabel("learning rate")
        axes.set_ylabel("training loss, of each update and smoothed")
        axes.grid(alpha=0.3)
        return {f"learning_rate.{kind}": as_bytes(figure, kind) for kind in ("png", "svg")}
