"""The curves of a run against the examples it has seen, and how noisy its loss is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertaccum.reporting.run_record import Record, undamaged


@dataclass(frozen=True)
class Series:
    """A run's logs as arrays, one entry an update or an evaluation.

    Args:
      updates: [updates] their numbers.
      examples: [updates] examples in each.
      loss: [updates] mean over these; NaN where it was not finite.
      learning_rate: [updates].
      evaluated: [evaluations] examples seen when it was evaluated.
      metric: the one of `METRICS` that `scores` holds.
      scores: [evaluations] on dev.tsv; NaN where an evaluation lacks the metric.
    """

    updates: np.ndarray
    examples: np.ndarray
    loss: np.ndarray
    learning_rate: np.ndarray
    evaluated: np.ndarray
    metric: str
    scores: np.ndarray

    @property
    def seen(self) -> np.ndarray:
        """Examples seen [updates] after each update."""
        return np.cumsum(self.examples)

    @property
    def total(self) -> int:
        """Examples seen in all."""
        return int(self.examples.sum())

    @property
    def middles(self) -> np.ndarray:
        """Examples seen [updates] when each window was half through."""
        return self.seen - self.examples / 2


def read_series(record: Record, metric: str | None = None) -> Series:
    """Return the curves of a run.

    Args:
      record: of the run.
      metric: of the evaluations; by default the one that selects the best checkpoint.

    Raises:
      InputError: a line of its logs is not one that training writes.
    """
    lines = record.updates
    with undamaged(record.paths.path):
        updates = np.array([line["update"] for line in lines], np.int64)
        examples = np.array([line["examples"] for line in lines], np.int64)
        loss = _numbers([line["loss"] for line in lines])
        rates = _numbers([line["learning_rate"] for line in lines])
        seen = dict(zip(updates.tolist(), np.cumsum(examples).tolist(), strict=True))
        known = [line for line in record.evaluations if line["update"] in seen]
        evaluated = np.array([seen[line["update"]] for line in known], np.int64)
        metric = metric or record.config.best_by
        scores = _numbers([line.get(metric) for line in known])
        return Series(updates, examples, loss, rates, evaluated, metric, scores)


def _numbers(values: list[float | None]) -> np.ndarray:
    """As an array; JSON has null where a number was not finite."""
    found = np.array([np.nan if value is None else value for value in values], np.float64)
    return np.where(np.isfinite(found), found, np.nan)


def default_span(several: list[Series]) -> int:
    """Return how many examples a loss is averaged over: a twentieth of the longest run's.

    It is never less than the largest update, whose loss is a mean already.
    """
    largest = max((int(series.examples.max(initial=0)) for series in several), default=0)
    return max(max(series.total for series in several) // 20, largest, 1)


def smoothed(series: Series, span: int) -> np.ndarray:
    """The running mean of the loss [updates], each example weighing the same.

    Args:
      series: of a run.
      span: examples in the middle of which each update stands; at the ends there are fewer.

    Returns:
      NaN where no loss in the span is finite.
    """
    middles = series.middles
    first = np.searchsorted(middles, middles - span / 2)
    last = np.searchsorted(middles, middles + span / 2, side="right")
    return _means(series, first, last)


def trailing(series: Series, span: int) -> np.ndarray:
    """Return the mean of the loss over the last `span` examples, as of each update [updates].

    Every number called "training loss" is one of these. Each example weighs the same; a window
    that the span reaches into counts whole. NaN where no loss in the span is finite.
    """
    first = np.searchsorted(series.seen, series.seen - span, side="right")
    return _means(series, first, np.arange(len(first)) + 1)


def training_loss(series: Series, span: int) -> float | None:
    """Return `trailing` as of the last update; None if there is none, or it is not finite."""
    means = trailing(series, span)
    return float(means[-1]) if len(means) and np.isfinite(means[-1]) else None


def _means(series: Series, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Means of loss[first:last] over examples; NaN where none of it is finite."""
    finite = np.isfinite(series.loss)
    weights = np.where(finite, series.examples, 0)
    sums = _between(np.where(finite, series.loss, 0) * weights, first, last)
    counts = _between(weights, first, last)
    return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)


def noise(series: Series, span: int) -> float | None:
    """The standard deviation of the loss around its own running mean.

    The running mean is over `span` examples, not updates, with the update in the middle; near
    the ends of the run the span shrinks on both sides, so that a falling loss is no noise. A
    mean of n losses of which one is the update's own follows that one: independent losses of
    variance v are left with (1 - 1/n) v, which is made good, so that runs with few and with
    many updates in a span compare. Updates with fewer than 3 in their span do not count, nor
    do those whose loss is not finite.

    Returns:
      None where no update counts.
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
    """The same run, its losses averaged over neighbours to means of about so many examples.

    A mean over 32 examples is less noisy than one over 8 because it is the larger mean. What
    is left of the difference when both are means of as many is the training's own.
    """
    numbers = (series.seen - 1) // max(examples, 1)
    _, starts = np.unique(numbers, return_index=True)
    if not len(starts):
        return series
    sizes = np.add.reduceat(series.examples, starts)
    loss = np.add.reduceat(series.loss * series.examples, starts) / sizes
    ends = np.append(starts[1:], len(numbers)) - 1
    # What the end of the run cut short is a smaller mean.
    kept = slice(-1 if sizes[-1] < min(examples, sizes.max()) else None)
    return Series(
        updates=series.updates[ends][kept],
        examples=sizes[kept],
        loss=loss[kept],
        learning_rate=series.learning_rate[ends][kept],
        evaluated=series.evaluated,
        metric=series.metric,
        scores=series.scores,
    )


def _between(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Sums of values[first:last]."""
    sums = np.concatenate([[0], np.cumsum(values)])
    return np.asarray(sums[last] - sums[first])
