"""Curves against examples seen, their running means, and the noise of the loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from writing import write_run

from bertaccum.errors import InputError
from bertaccum.reporting.curves import (
    Series,
    default_span,
    noise,
    read_series,
    regrouped,
    smoothed,
    trailing,
    training_loss,
)
from bertaccum.runs.record import read_record


def series_of(losses: np.ndarray, batch: int) -> Series:
    count = len(losses)
    return Series(
        updates=np.arange(1, count + 1),
        examples=np.full(count, batch),
        loss=np.asarray(losses, float),
        learning_rate=np.full(count, 1e-3),
        evaluated=np.array([], int),
        metric="accuracy",
        scores=np.array([]),
    )


def test_evaluations_are_placed_at_the_examples_seen(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", [0.7, None, 0.5], batch=8, accuracies={1: 0.5, 3: 0.6, 9: 0.9})
    series = read_series(read_record(run))
    assert series.seen.tolist() == [8, 16, 24]
    assert np.isnan(series.loss[1])
    # The log has no update 9, so its evaluation is dropped.
    assert series.evaluated.tolist() == [8, 24]
    assert series.scores.tolist() == [0.5, 0.6]


@pytest.mark.parametrize(
    "line", ['"update": 2, "loss": "x", "examples": 4', '"update": 2, "loss": 1']
)
def test_error_names_run_with_a_damaged_log(tmp_path: Path, line: str) -> None:
    run = write_run(tmp_path / "r", [0.7])
    with (run / "metrics.jsonl").open("a") as file:
        file.write(f'{{"kind": "updated", {line}}}\n')
    with pytest.raises(InputError, match=r"r: the files of this run are damaged \(\w+Error: "):
        read_series(read_record(run))


def test_running_means_match_values_by_hand() -> None:
    series = series_of(np.array([1.0, 2.0, np.nan, 4.0, 8.0]), 10)
    # The middles are 5, 15, …, 45 examples, so a span of 20 reaches one neighbour on each side.
    assert smoothed(series, 20).tolist() == [1.5, 1.5, 3.0, 6.0, 6.0]
    assert smoothed(series, 1) == pytest.approx([1, 2, np.nan, 4, 8], nan_ok=True)
    assert training_loss(series, 20) == 6.0
    assert training_loss(series, 1) == 8.0
    assert trailing(series, 20) == pytest.approx([1, 1.5, 2, 4, 6])
    assert default_span([series, series_of(np.ones(100), 10)]) == 50
    # A twentieth of this run is 2 examples, but a span is never smaller than an update.
    assert default_span([series]) == 10


def test_short_last_window_is_weighted_by_its_examples() -> None:
    series = series_of(np.array([1.0, 4.0]), 6)
    series = Series(**vars(series) | {"examples": np.array([6, 2])})
    assert smoothed(series, 100).tolist() == [1.75, 1.75]
    assert training_loss(series, 100) == 1.75


def test_noise_matches_values_by_hand() -> None:
    # The middle loss differs by 1 - 1/3 from the mean of three; 3/2 corrects the variance.
    series = series_of(np.array([0.0, 1.0, 0.0]), 10)
    assert noise(series, 20) == pytest.approx(np.sqrt((2 / 3) ** 2 * 3 / 2))
    assert noise(series_of(np.array([1.0]), 10), 20) is None
    assert noise(series_of(np.array([1.0, 2.0]), 10), 20) is None
    assert noise(series_of(np.array([np.nan] * 9), 10), 20) is None
    assert noise(series_of(np.array([]), 10), 20) is None


@pytest.mark.parametrize("batch", [1, 4, 16, 64])
def test_noise_does_not_depend_on_the_updates_per_span(batch: int) -> None:
    rng = np.random.default_rng(0)
    slope = np.linspace(3, 0, 64_000 // batch)
    series = series_of(slope + 0.2 * rng.normal(size=len(slope)), batch)
    assert noise(series, 256) == pytest.approx(0.2, rel=0.05)


def test_steadily_falling_loss_is_not_noise() -> None:
    assert noise(series_of(np.linspace(3, 0, 50), 8), 100) == pytest.approx(0, abs=1e-12)


def test_noise_of_means_of_equal_size_can_be_compared() -> None:
    """Four means over 8 independent examples are as noisy as one mean over 32."""
    rng = np.random.default_rng(0)
    single = rng.normal(size=64_000)
    small, large = (series_of(single.reshape(-1, n).mean(axis=1), n) for n in (8, 32))
    of_small, of_large = noise(small, 1000), noise(large, 1000)
    assert of_small == pytest.approx(2 * of_large, rel=0.03)
    again = regrouped(small, 32)
    assert again.loss == pytest.approx(large.loss)
    assert again.seen.tolist() == large.seen.tolist()
    assert regrouped(large, 32).loss == pytest.approx(large.loss)


def test_incomplete_last_mean_is_dropped() -> None:
    series = series_of(np.arange(10.0), 8)
    assert regrouped(series, 32).loss.tolist() == [1.5, 5.5]
    assert regrouped(series_of(np.array([]), 8), 32).loss.tolist() == []
