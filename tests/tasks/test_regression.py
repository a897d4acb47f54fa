"""Scores of a regression against SciPy, and the numbers that label columns may contain."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from bertaccum.errors import InputError
from bertaccum.options.task_names import REGRESSION
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.regression import regression_labels, scores_in

STARS = Labels([], [], task=REGRESSION, mean=3.0, std=2.0)


def table(*cells: str) -> pd.DataFrame:
    return pd.DataFrame({"row": range(2, 2 + len(cells)), "label": cells})


def scores(predicted: list[float], wanted: list[float]) -> dict[str, float]:
    logits, labels = ((np.array(values, np.float32) - 3) / 2 for values in (predicted, wanted))
    return make_task(STARS).scores(logits[:, np.newaxis], labels)


def test_mistakes_show_numbers_that_differ_by_the_error() -> None:
    task = make_task(Labels([], [], task=REGRESSION, mean=14000.0, std=1500.0))
    logits = (np.array([[249549.0], [3.14159], [12341.5]], np.float32) - 14000) / 1500
    labels = (np.array([249500, 7.0, 12349], np.float32) - 14000) / 1500
    found = [(row["label"], row["prediction"]) for row in task.mistakes(logits, labels, 3)]
    assert found == [("249500", "249549"), ("12349", "12341.5"), ("7", "3.142")]


# Numbers of which float32 keeps all digits, with many ties.
HALVES = st.integers(-6, 6).map(lambda number: number / 2)


@given(st.lists(st.tuples(HALVES, HALVES), min_size=2, max_size=20))
def test_correlations_match_scipy(pairs: list[tuple[float, float]]) -> None:
    predicted, wanted = (list(column) for column in zip(*pairs, strict=True))
    assume(len(set(predicted)) > 1 and len(set(wanted)) > 1)
    found = scores(predicted, wanted)
    assert found["pearson"] == pytest.approx(stats.pearsonr(predicted, wanted)[0], abs=1e-9)
    assert found["spearman"] == pytest.approx(stats.spearmanr(predicted, wanted)[0], abs=1e-9)
    assert found["mse"] == pytest.approx(np.mean(np.subtract(predicted, wanted) ** 2))


def test_spearman_with_ties_matches_a_value_by_hand() -> None:
    found = scores([1, 2, 2, 4], [1, 3, 2, 2])
    # The ranks are 1, 2.5, 2.5, 4 and 1, 4, 2.5, 2.5: 2.25 / 4.5 of their variance is shared.
    assert found["spearman"] == pytest.approx(0.5)


@pytest.mark.parametrize("examples", [1, 3, 7, 50])
@pytest.mark.parametrize("value", [0.1, 0.7, 2.3, 1e6 + 0.1])
def test_single_values_have_no_correlation(value: float, examples: int) -> None:
    """The mean of equal numbers may differ from them, so that rounding errors would correlate."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = scores([value] * examples, [0.1] * examples)
        one_sided = scores([value] * examples, [0.1 * i for i in range(examples)])
    assert (found["pearson"], found["spearman"]) == (0, 0)
    assert (one_sided["pearson"], one_sided["spearman"]) == (0, 0)


def test_predictions_that_are_not_numbers_have_no_correlation_either() -> None:
    found = scores([float("nan"), 1, 2], [1, 2, 3])
    assert all(np.isnan(found[name]) for name in ("pearson", "spearman", "mse", "loss"))


@pytest.mark.parametrize("cell", ["", "good", "nan", "-inf", "1_5", "1,5", "1e39", "3|4"])
def test_cell_that_is_not_a_finite_number_is_an_error(cell: str) -> None:
    with pytest.raises(InputError, match=r"x, row 3: label .* is not a finite number; correct it"):
        scores_in(Path("x"), table("1", cell))


def test_cells_are_read_exactly() -> None:
    assert scores_in(Path("x"), table("0.1", "-2", "3e-2", " 4.5 ")) == [0.1, -2, 0.03, 4.5]


@pytest.mark.parametrize("cell", ["3", "0.1", "4.2"])
def test_labels_that_are_all_equal_are_refused(cell: str) -> None:
    """The mean of some numbers has a rounding error, and so has their deviation."""
    with pytest.raises(InputError, match=f"x: every row has the label {cell}; check the label col"):
        regression_labels(Path("x"), table(*[cell] * 7), pairs=False)


def test_standardization_is_that_of_train() -> None:
    """The labels of other splits keep their unit, whatever their own mean is."""
    labels = regression_labels(Path("x"), table("1", "5"), pairs=False)
    assert (labels.mean, labels.std) == (3.0, 2.0)
    task = make_task(labels)
    encoded = task.encode(Path("x"), table("1", "5", "9"))
    np.testing.assert_array_equal(encoded, [-1, 1, 3])
    assert [one["score"] for one in task.predictions(encoded[:, np.newaxis])] == [1, 5, 9]
    assert task.scores(encoded[:, np.newaxis], encoded)["mean_baseline_mse"] == pytest.approx(
        (4 + 4 + 36) / 3
    )
