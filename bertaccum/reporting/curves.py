"""Curves of a run against examples seen, and the noise of its training loss."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from bertaccum.runs.record import Record, undamaged


@dataclass(frozen=True)
class Series:
    """The logs of a run as arrays, with one entry per update or evaluation."""

    updates: np.ndarray  # The number of each update, int64 [updates].
    examples: np.ndarray  # The number of examples in each update, int64 [updates].
    loss: np.ndarray  # The mean loss of each update, float64 [updates]; NaN if it was not finite.
    learning_rate: np.ndarray  # The learning rate of each update, float64 [updates].
    evaluated: np.ndarray  # The number of examples seen at each evaluation, int64 [evaluations].
    metric: str  # The metric in `scores`, one of `METRICS`.
    # The dev metric, float64 [evaluations]; NaN if an evaluation lacks the metric.
    scores: np.ndarray

    @property
    def seen(self) -> np.ndarray:
        """The number of examples seen after each update, [updates]."""
        return np.cumsum(self.examples)

    @property
    def total(self) -> int:
        """The total number of examples seen."""
        return int(self.examples.sum())

    @property
    def middles(self) -> np.ndarray:
        """The number of examples seen at the middle of each window, [updates]."""
        return self.seen - self.examples / 2


def read_series(record: Record, metric: str | None = None) -> Series:
    """Return the curves of a run, with the metric that selects the best checkpoint by default."""
    lines = record.updates
    with undamaged(record.paths.path):
        updates = np.array([line["update"] for line in lines], np.int64)
        examples = np.array([line["examples"] for line in lines], np.int64)
        loss = _numbers([line["loss"] for line in lines])
        rates = _numbers([line["learning_rate"] for line in lines])
        seen = dict(zip(updates.tolist(), np.cumsum(examples).tolist(), strict=True))
        known = [line for line in record.evaluations if line["update"] in seen]
        evaluated = np.array([seen[line["update"]] for line in known], np.int64)
        metric = metric or record.best_by
        scores = _numbers([line.get(metric) for line in known])
        return Series(updates, examples, loss, rates, evaluated, metric, scores)


def _numbers(values: list[float | None]) -> np.ndarray:
    """Return values as an array, with NaN for None, which replaces non-finite values in JSON."""
    numbers = np.array([np.nan if value is None else value for value in values], np.float64)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def default_span(several: list[Series]) -> int:
    """Return the default number of examples to average a loss over.

    This is a twentieth of the longest run, but no less than the largest update.
    """
    largest = max(int(series.examples.max(initial=0)) for series in several)
    return max(max(series.total for series in several) // 20, largest, 1)


def smoothed(series: Series, span: int) -> np.ndarray:
    """Return the centered running mean [updates] of the loss; NaN if no loss in it is finite.

    It covers `span` examples around the middle of each update, and fewer near both ends of the run.
    """
    middles = series.middles
    first = np.searchsorted(middles, middles - span / 2)
    last = np.searchsorted(middles, middles + span / 2, side="right")
    return _means(series, first, last)


def trailing(series: Series, span: int) -> np.ndarray:
    """Return the mean loss over the last `span` examples at each update, [updates].

    Every reported "training loss" is such a mean. All examples have the same weight, and a window
    that is partly in the span counts fully. The mean is NaN if no loss in the span is finite.
    """
    first = np.searchsorted(series.seen, series.seen - span, side="right")
    return _means(series, first, np.arange(len(first)) + 1)


def training_loss(series: Series, span: int) -> float | None:
    """Return `trailing` at the last update, or None if there is no update or the mean is NaN."""
    means = trailing(series, span)
    return float(means[-1]) if len(means) and np.isfinite(means[-1]) else None


def _means(series: Series, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return the means of loss[first:last], weighted by examples; NaN if no loss is finite."""
    finite = np.isfinite(series.loss)
    weights = np.where(finite, series.examples, 0)
    sums = _between(np.where(finite, series.loss, 0) * weights, first, last)
    counts = _between(weights, first, last)
    return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)


def noise(series: Series, span: int) -> float | None:
    """Return the standard deviation of the loss around its own running mean.

    The running mean covers `span` examples, not updates, and is centered on the update. Near the
    ends of the run, the span shrinks on both sides, so that a falling loss does not count as noise.
    The mean of n losses includes the loss of the update itself. If the losses are independent with
    variance v, their deviation from the mean therefore has only the variance (1 - 1/n) v. The
    result corrects for this, so that runs with few and many updates per span can be compared.
    Updates with fewer than 3 updates in their span, or with a non-finite loss, are ignored.
    """
    finite = np.isfinite(series.loss)
    middles, loss = series.middles[finite], series.loss[finite]
    if not len(loss):
        return None
    half = np.minimum(span / 2, np.minimum(middles - middles[0], middles[-1] - middles))
    first = np.searchsorted(middles, middles - half)
    last = np.searchsorted(middles, middles + half, side="right")
    count = last - first
    residual = loss - _between(loss, first, last) / count
    counts = count >= 3
    if not counts.any():
        return None
    variances = residual[counts] ** 2 * count[counts] / (count[counts] - 1)
    return float(np.sqrt(variances.mean()))


def regrouped(series: Series, examples: int) -> Series:
    """Return the curves with neighboring losses averaged into means over about `examples` examples.

    A mean over 32 examples is less noisy than one over 8 simply because it has more examples. Any
    difference that remains between means of equal size comes from the training itself.
    """
    numbers = (series.seen - 1) // max(examples, 1)
    _, starts = np.unique(numbers, return_index=True)
    if not len(starts):
        return series
    sizes = np.add.reduceat(series.examples, starts)
    loss = np.add.reduceat(series.loss * series.examples, starts) / sizes
    ends = np.append(starts[1:], len(numbers)) - 1
    # Drop the last mean if the run ended before it had enough examples.
    kept = slice(-1 if sizes[-1] < min(examples, sizes.max()) else None)
    return dataclasses.replace(
        series,
        updates=series.updates[ends][kept],
        examples=sizes[kept],
        loss=loss[kept],
        learning_rate=series.learning_rate[ends][kept],
    )


def _between(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return the sums of values[first:last]."""
    sums = np.concatenate([[0], np.cumsum(values)])
    return np.asarray(sums[last] - sums[first])
