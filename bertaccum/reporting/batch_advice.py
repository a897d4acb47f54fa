"""Advice on the target batch, from the gradient noise scale that a run has measured.

With noise scale S, the number of updates to a given loss is proportional to 1 + S / batch, and the
number of examples to 1 + batch / S.

Sources: McCandlish et al. 2018, "An Empirical Model of Large-Batch Training", equations 2.11 and
2.12; Malladi et al. 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", for the
learning rate of Adam.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertaccum.errors import InputError
from bertaccum.options.commands import TrainConfig
from bertaccum.runs.record import Record
from bertaccum.system.files import finite
from bertaccum.system.phrases import counted

# The estimate uses the last part of a run, because the noise scale grows during training.
_LATE = 1 / 3
_MIN_UPDATES = 20
_BLOCKS = 10
# Target batches in the table, as multiples of the run's.
_MULTIPLES = (0.25, 0.5, 1, 2, 4, 8, 16)


@dataclass(frozen=True)
class NoiseScale:
    """The noise scale of a part of a run."""

    # The noise scale, in examples; infinite if the signal cannot be told from zero.
    noise_scale: float
    standard_error: float  # Its standard error, in examples.
    # A noise scale two standard errors of the signal below the estimate; a lower bound.
    lowest: float
    first_update: int  # The updates that were used, counted from 1.
    last_update: int


def noise_scale(updates: list[dict[str, Any]], part: float = _LATE) -> NoiseScale | None:
    """Return the noise scale of the last part of a run; None if too few updates measured it.

    The standard error comes from leaving out blocks of consecutive updates, one at a time
    (jackknife), because the estimates of neighboring updates are correlated.

    Args:
      part: Fraction of the updates to use; the default is a third (benchmarks use all).
    """
    known = [line for line in updates if line.get("gradient_noise") is not None]
    late = known[-max(round(len(known) * part), _MIN_UPDATES) :]
    if len(late) < _MIN_UPDATES:
        return None
    pairs = np.array([(line["gradient_noise"], line["gradient_signal"]) for line in late])
    sums = np.add.reduceat(pairs, np.arange(_BLOCKS) * len(late) // _BLOCKS)  # [blocks, 2]
    noise, signal = sums.sum(axis=0).tolist()
    # Two standard errors of the sum of the signals.
    margin = 2 * math.sqrt(_BLOCKS) * statistics.stdev(sums[:, 1].tolist())
    without = [(noise - n, signal - s) for n, s in sums.tolist()]
    return NoiseScale(
        noise_scale=noise / signal if signal > margin else math.inf,
        standard_error=_jackknife([n / s if s > 0 else math.inf for n, s in without]),
        lowest=max(noise, 0.0) / (signal + margin) if signal + margin > 0 else math.inf,
        first_update=late[0]["update"],
        last_update=late[-1]["update"],
    )


def noise_facts(record: Record) -> dict[str, Any] | None:
    """Return the fields of a run's `NoiseScale`, with None for infinite ones.

    The result is None if the run has measured too few updates to tell noise and signal from zero.
    """
    scale = noise_scale(record.updates)
    if scale is None or not 0 < scale.lowest < math.inf:
        return None
    return finite(dataclasses.asdict(scale))


def advice(record: Record) -> dict[str, Any]:
    """Return what the noise scale of a run says about its target batch.

    Returns:
      `run`, `target_batch`, `learning_rate`; the fields of `NoiseScale`, with None for infinite
      ones; and `batches`: for each `target_batch`, its `updates` and `examples` relative to the
      run's, and a `learning_rate`. If the noise scale is unknown, they are computed from `lowest`,
      and `is_bound` is True.

    Raises:
      InputError: The run has measured its noise scale in too few updates, or none above zero.
    """
    noise = noise_facts(record)
    if noise is None:
        measured = sum(line.get("gradient_noise") is not None for line in record.updates)
        what = f"measured its noise scale in only {counted(measured, 'update')}"
        remedy = f"train at least {_MIN_UPDATES + 1} updates, without `noise_scale` none"
        rows = (record.inputs.get("rows") or {}).get("train.tsv", math.inf)
        if not measured and record.config.target_batch >= rows:
            what = "reads all examples in each update, so there is no gradient noise to measure"
            remedy = "train with a lower `target_batch`"
        if measured >= _MIN_UPDATES:
            what = "measured a gradient noise or signal that is not above zero"
            remedy = "train longer, so that more updates measure them"
        raise InputError(what, remedy, path=record.paths.path)
    scale = noise["noise_scale"] or noise["lowest"]
    return {
        "run": str(record.paths.path),
        "target_batch": record.config.target_batch,
        "learning_rate": record.config.learning_rate,
        **noise,
        "is_bound": noise["noise_scale"] is None,
        "batches": [
            relative(record.config, scale, batch)
            for batch in sorted({round(record.config.target_batch * m) for m in _MULTIPLES} - {0})
        ],
    }


def relative(config: TrainConfig, scale: float, batch: int) -> dict[str, Any]:
    """Return the predictions for another target batch, relative to that of `config`.

    The learning rate follows the square root rule of Adam below the noise scale, and levels off
    above it.
    """
    updates = (1 + scale / batch) / (1 + scale / config.target_batch)
    rate = config.learning_rate or math.nan  # The configuration of a run has one.
    return {
        "target_batch": batch,
        "updates": updates,
        "examples": updates * batch / config.target_batch,
        "learning_rate": rate / math.sqrt(updates),
    }


def _jackknife(values: list[float]) -> float:
    """Return the standard error of an estimate, given its values without each of the blocks."""
    if not all(map(math.isfinite, values)):
        return math.inf
    return math.sqrt(statistics.pvariance(values) * (len(values) - 1))
