"""Finding a learning rate: a short run with a rising rate, until the loss has clearly risen.

Source: Smith 2017, "Cyclical Learning Rates for Training Neural Networks" (the range test).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tf_keras

from bertaccum import _tf_compat
from bertaccum.bert.precision import remedy
from bertaccum.data.run_inputs import RunInputs
from bertaccum.distribution.topology import replicas_to_come
from bertaccum.errors import ConfigError, RunError
from bertaccum.options.commands import TrainConfig
from bertaccum.options.fields import AUTO, OFF
from bertaccum.reporting.figures import rate_figure
from bertaccum.runs.folder import RunFolder
from bertaccum.system.atomic import new_folder, write_bytes, write_text
from bertaccum.system.files import json_text
from bertaccum.system.progress import Progress
from bertaccum.training.events import OutOfMemory, Updated
from bertaccum.training.recipe import Schedule
from bertaccum.training.setup import connect, set_up
from bertaccum.training.updater import Updater

# Fine-tuning BERT needs rates between these, whatever the model and the task.
LOWEST, HIGHEST = 1e-6, 1e-1
UPDATES = 100
# Number of updates that the loss is averaged over, ratio of the rate with the lowest loss to the
# suggestion, and factor by which the loss rises until the run stops.
_SPAN = 11
_MARGIN = 3
_RISEN = 1.5
RECORD = "learning_rate.json"


def find_rate(config: TrainConfig, inputs: RunInputs | None, progress: Progress) -> dict[str, Any]:
    """Train with a rising learning rate, and write the curve to a folder.

    The run begins like any other, but its rate rises exponentially from `LOWEST` to `HIGHEST`. It
    ends early if the loss has clearly risen. No checkpoint is written.

    Args:
      config: Options of the run. `max_updates` is the number of updates, by default `UPDATES`;
        `out` is the folder to write to, by default a new one in `runs`.
      inputs: Inputs of the run; None to find them.
      progress: Reports preparations and updates.

    Returns:
      What `suggested` returns; `rates` and `losses` of the updates; `target_batch`; `seconds`; and
        `folder` and `figures`, what was written.

    Raises:
      ConfigError, InputError: An option or file cannot be used.
      RunError: Memory ran out with one example at a time, or no loss is finite.
    """
    if replicas_to_come(config.strategy, config.replicas)[1] > 1:
        raise ConfigError(
            "`find_lr` is for one process, but the environment describes several workers",
            "run it in one of them",
        )
    updates = UPDATES if config.max_updates is None else config.max_updates
    if updates < 2 * _SPAN:
        raise ConfigError(
            f"`max_updates` {updates} are too few for a curve", f"use at least {2 * _SPAN}"
        )
    path = RunFolder.new_path(config.out)
    if not config.out:
        path = path.with_name(f"{path.name}-learning-rate")
    rise = tf_keras.optimizers.schedules.ExponentialDecay(LOWEST, updates - 1, HIGHEST / LOWEST)
    start, rates, losses = time.perf_counter(), list[float](), list[float]()
    with contextlib.closing(_updates(config, inputs, rise, progress)) as events:
        for event in events:
            rates.append(event.learning_rate)
            losses.append(event.loss)
            progress("trying learning rates", len(rates), updates)
            if len(rates) == updates or _has_risen(losses):
                break
    if not np.isfinite(losses[1:]).any():
        raise RunError("the loss is not finite in any update", remedy(config.precision))
    found = suggested(np.array(rates), np.array(losses)) | {
        "rates": rates,
        "losses": losses,
        "target_batch": config.target_batch,
        "seconds": time.perf_counter() - start,
    }
    return found | _write(path, found)


def _updates(
    config: TrainConfig, inputs: RunInputs | None, schedule: Schedule, progress: Progress
) -> Generator[Updated, None, None]:
    """Train without a run folder, evaluations or an end, and yield each update."""
    if config.compile == AUTO:
        config = dataclasses.replace(config, compile=OFF)
    session = connect(config, None, progress)
    with _tf_compat.forgetting_custom_gradients():
        updater = Updater(set_up(config, session, inputs, schedule=schedule))
        with contextlib.closing(updater):
            updater.start(0)
            while True:
                event = updater.wait()
                if isinstance(event, OutOfMemory):
                    updater.start(event.update - 1, again=True)
                    continue
                if updater.overlaps:
                    updater.start(event.update)
                yield event
                if not updater.is_running:
                    updater.start(event.update)


def suggested(rates: np.ndarray, losses: np.ndarray) -> dict[str, Any]:
    """Return a learning rate for training, given a curve of losses at rising rates.

    A loss is measured before its own update, and thus belongs to the rate of the update before. The
    losses are then averaged over neighboring updates. A third of the rate with the lowest mean loss
    leaves a margin to the rates at which the loss rises; docs/how-to/compare.md compares it with
    the best rates of grids.

    Args:
      rates: Learning rates of consecutive updates, [updates].
      losses: Mean loss of the examples of each update, before the update, [updates]; NaN after the
        first one that is not finite.

    Returns:
      `lowest_loss_at`, the rate with the lowest mean loss; `learning_rate`, a third of it, or None
        if the loss fell by less than three standard errors of a mean; `has_risen`, whether the
        loss rises after its lowest value; and `smoothed_losses` [updates - 1].
    """
    after = pd.Series(losses[1:])
    smoothed = after.rolling(_SPAN, center=True, min_periods=1).mean().to_numpy()
    lowest = int(np.nanargmin(smoothed))
    # After the lowest mean, the losses may differ by much more. At the start, a mean has half as
    # many losses.
    before = (after - smoothed)[: max(lowest, _SPAN)]
    standard_error = float(np.nanstd(before)) / math.sqrt(_SPAN / 2)
    fell = losses[:_SPAN].mean() - smoothed[lowest] > 3 * standard_error
    return {
        "learning_rate": float(rates[lowest]) / _MARGIN if fell else None,
        "lowest_loss_at": float(rates[lowest]),
        "has_risen": lowest < len(smoothed) - _SPAN
        or not smoothed[-1] <= smoothed[lowest] + 3 * standard_error,
        "smoothed_losses": smoothed.tolist(),
    }


def _has_risen(losses: list[float]) -> bool:
    """Return whether the mean of the last losses is clearly above that of the first ones."""
    # If a loss is not finite, the comparison is false, so that the run ends.
    return len(losses) > _SPAN and not sum(losses[-_SPAN:]) <= _RISEN * sum(losses[:_SPAN])


def _write(path: Path, found: dict[str, Any]) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(path, existing="refuse") as folder:
        write_text(folder / RECORD, json_text(found))
        for name, content in (figures := rate_figure(found)).items():
            write_bytes(folder / name, content)
    return {"folder": str(path), "figures": [str(path / name) for name in figures]}
