"""Scores, decoding and calibration of each kind of task, against independent computations."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from bertaccum.errors import InputError
from bertaccum.options.task_names import MULTI_LABEL, REGRESSION, TASKS
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.multi_label import MultiLabel, _best_threshold
from bertaccum.tasks.regression import regression_labels
from bertaccum.tasks.scoring import reliability
from bertaccum.tasks.task import Decoding

NAMES = ["a", "b", "c"]
SETS = Labels(["0", "1", "2"], NAMES, task=MULTI_LABEL)
STARS = Labels([], [], task=REGRESSION, mean=3.0, std=2.0)
CLASSES = Labels(["0", "1", "2"], NAMES)
RNG = np.random.default_rng(7)


def table(*cells: str) -> pd.DataFrame:
    return pd.DataFrame({"row": range(2, 2 + len(cells)), "label": cells})


def test_regression_scores_are_in_the_unit_of_the_labels() -> None:
    task = make_task(STARS)
    wanted = np.array([1.0, 2.0, 2.0, 5.0, 4.0])
    predicted = np.array([1.5, 1.0, 3.0, 4.0, 4.0])
    labels = task.encode(Path("x"), table(*map(str, wanted)))
    np.testing.assert_allclose(labels, (wanted - 3) / 2)
    logits = ((predicted - 3) / 2).astype(np.float32)[:, np.newaxis]
    found = task.report(logits, labels)
    assert found["pearson"] == pytest.approx(stats.pearsonr(predicted, wanted)[0])
    assert found["spearman"] == pytest.approx(stats.spearmanr(predicted, wanted)[0])
    assert found["mse"] == pytest.approx(np.mean((predicted - wanted) ** 2))
    assert found["loss"] == pytest.approx(found["mse"] / 4)
    assert found["mean_baseline_mse"] == pytest.approx(np.mean((wanted - 3) ** 2))
    assert [one["score"] for one in task.predictions(logits)] == pytest.approx(predicted)
    worst = task.mistakes(logits, labels, 2)
    assert [one["index"] for one in worst] == [1, 2]
    assert worst[0] | {"index": 0} == {"index": 0, "label": "2", "prediction": "1", "error": 1.0}
    factor, offset = task.head_transform()
    np.testing.assert_allclose(logits[:, 0] * factor + offset, predicted)


def test_constant_predictions_have_no_correlation() -> None:
    found = make_task(STARS).scores(np.zeros((4, 1), np.float32), np.arange(4, dtype=np.float32))
    assert (found["pearson"], found["spearman"]) == (0.0, 0.0)


def test_labels_of_a_regression_are_standardized_with_those_of_train() -> None:
    found = regression_labels(Path("x"), table("1", "2", "6"), pairs=True)
    assert (found.mean, found.std, found.pairs) == (3.0, pytest.approx(np.std([1, 2, 6])), True)
    with pytest.raises(InputError, match="every row has the label 2"):
        regression_labels(Path("x"), table("2", "2.0"), pairs=False)


def test_multi_label_scores_match_scikit_learn() -> None:
    logits = RNG.normal(size=(40, 3)).astype(np.float32)
    labels = (RNG.random((40, 3)) < 0.3).astype(np.float32)
    found = make_task(SETS).report(logits, labels)
    predicted, probabilities = logits >= 0, 1 / (1 + np.exp(-logits.astype(np.float64)))
    for name, average in (("micro_f1", "micro"), ("macro_f1", "macro")):
        assert found[name] == pytest.approx(metrics.f1_score(labels, predicted, average=average))
    assert found["average_precision"] == pytest.approx(
        np.mean([metrics.average_precision_score(labels[:, i], logits[:, i]) for i in range(3)])
    )
    assert found["exact_match"] == metrics.accuracy_score(labels, predicted)
    assert found["loss"] == pytest.approx(metrics.log_loss(labels.ravel(), probabilities.ravel()))
    per_label = metrics.f1_score(labels, predicted, average=None)
    assert [row.f1 for row in found["classes"]] == pytest.approx(per_label.tolist())
    assert [row.name for row in found["classes"]] == NAMES


def test_multi_label_predictions_use_the_thresholds() -> None:
    task = make_task(SETS, Decoding(thresholds=[0.2, 0.5, 0.9]))
    (one,) = task.predictions(np.log([[0.25 / 0.75, 0.4 / 0.6, 0.9]], dtype=np.float32))
    assert one["labels"] == ["a"]
    assert one["probabilities"] == pytest.approx({"a": 0.25, "b": 0.4, "c": 0.9 / 1.9}, abs=1e-6)


def test_labels_that_never_occur_do_not_count_for_average_precision() -> None:
    labels = np.array([[1, 0, 0], [0, 0, 1]], np.float32)
    found = make_task(SETS).scores(np.array([[2, 0, -1], [0, 0, 3]], np.float32), labels)
    assert found["average_precision"] == 1.0


@given(
    probabilities=st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.5, 0.7, 0.9]), min_size=1, max_size=9),
    data=st.data(),
)
def test_fitted_threshold_has_the_highest_f1(probabilities: list[float], data: object) -> None:
    n = len(probabilities)
    wanted = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))  # type: ignore[attr-defined]
    values = np.array(probabilities, np.float32)
    threshold = np.float32(_best_threshold(values, wanted))
    if not wanted.any():
        assert threshold == 0.5
        return
    tried = [metrics.f1_score(wanted, values >= t) for t in (*values, np.float32(1.1))]
    assert metrics.f1_score(wanted, values >= threshold) == pytest.approx(max(tried))


def test_fitting_improves_dev_and_keeps_the_answers() -> None:
    labels = RNG.integers(0, 3, 200)
    # The logits are right in two of three examples, but much too certain.
    logits = RNG.normal(size=(200, 3)) + 2 * np.eye(3)[np.where(RNG.random(200) < 0.67, labels, 0)]
    logits = (6 * logits).astype(np.float32)
    task = make_task(CLASSES)
    decoding = task.fit_decoding(logits, labels, calibrate=True, thresholds=False)
    fitted = make_task(CLASSES, decoding)
    before, after = task.report(logits, labels), fitted.report(logits, labels)
    assert decoding.temperature > 2
    assert after["loss"] < before["loss"]
    assert after["expected_calibration_error"] < before["expected_calibration_error"]
    assert (after["accuracy"], after["confusion_matrix"]) == (
        before["accuracy"],
        before["confusion_matrix"],
    )
    # No other temperature is better.
    for factor in (0.9, 1.1):
        other = make_task(CLASSES, Decoding(decoding.temperature * factor))
        assert other.scores(logits, labels)["loss"] > after["loss"]
    factor, offset = fitted.head_transform()
    (one,) = make_task(CLASSES).predictions(logits[:1] * factor + offset)
    (two,) = fitted.predictions(logits[:1])
    assert one["probabilities"] == pytest.approx(two["probabilities"])


def test_new_temperature_needs_new_thresholds() -> None:
    logits = (5 * RNG.normal(size=(60, 3))).astype(np.float32)
    labels = (RNG.random((60, 3)) < 0.4).astype(np.float32)
    first = make_task(SETS).fit_decoding(logits, labels, calibrate=False, thresholds=True)
    again = make_task(SETS, first).fit_decoding(logits, labels, calibrate=True, thresholds=False)
    assert again.temperature != 1
    predicted = [
        [one["labels"] for one in make_task(SETS, decoding).predictions(logits)]
        for decoding in (first, again)
    ]
    assert predicted[0] == predicted[1]


def test_calibration_error_matches_a_value_by_hand() -> None:
    # Two bins: confidence 0.95 with accuracy 1/2, and confidence 0.5 with accuracy 1.
    found = reliability(np.array([0.95, 0.95, 0.5, 0.5]), np.array([True, False, True, True]))
    assert found["expected_calibration_error"] == pytest.approx(0.5 * 0.45 + 0.5 * 0.5)
    assert found["reliability"] == [
        {"confidence": 0.5, "accuracy": 1.0, "examples": 2},
        {"confidence": 0.95, "accuracy": 0.5, "examples": 2},
    ]


@pytest.mark.parametrize("labels", [CLASSES, STARS, SETS], ids=TASKS[:3])
def test_logits_that_are_not_finite_give_scores(labels: Labels) -> None:
    task = make_task(labels)
    logits = np.full((4, task.labels.outputs), np.nan, np.float32)
    cells = {"classification": "1", "regression": "2.5", "multi-label": "0|2"}[labels.task]
    scores = task.scores(logits, task.encode(Path("x"), table(*[cells] * 4)))
    assert not math.isfinite(scores["loss"])
    assert set(task.metrics) <= set(scores)


@pytest.mark.parametrize(
    ("labels", "cell", "message"),
    [
        (CLASSES, "7", r"^x, row 3: label '7' is unknown; use one of 0, 1, 2 \(a, b, c\)$"),
        (SETS, "1|7", r"^x, row 3: label '7' is unknown; use one of"),
        (STARS, "good", r"^x, row 3: label 'good' is not a finite number; correct it"),
        (STARS, "inf", r"^x, row 3: label 'inf' is not a finite number"),
    ],
)
def test_unusable_labels_are_named_with_their_row(labels: Labels, cell: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_task(labels).encode(Path("x"), table("1", cell))


def test_cells_of_several_labels() -> None:
    encoded = make_task(SETS).encode(Path("x"), table("2|0", "|", "1"))
    assert encoded.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    named = MultiLabel(SETS).encode(Path("x"), table("c, a", "b"), ",", by_name=True)
    assert named.tolist() == [[1, 0, 1], [0, 1, 0]]
