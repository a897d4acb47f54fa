"""Temperature scaling and the calibration error of each task that has probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertaccum.options.task_names import MULTI_LABEL
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.scoring import fitted_temperature, reliability
from bertaccum.tasks.task import Decoding

CLASSES = Labels(["0", "1", "2"], ["a", "b", "c"])
SETS = Labels(["0", "1", "2"], ["a", "b", "c"], task=MULTI_LABEL)


def examples(seed: int, scale: float, labels: Labels) -> tuple[np.ndarray, np.ndarray]:
    """Return random logits [20, 3] of this scale, and labels that partly agree with them."""
    rng = np.random.default_rng(seed)
    logits = (scale * rng.normal(size=(20, 3))).astype(np.float32)
    noisy = logits + 2 * scale * rng.normal(size=(20, 3))
    return logits, noisy.argmax(1) if labels is CLASSES else (noisy > 0).astype(np.float32)


@pytest.mark.parametrize("labels", [CLASSES, SETS], ids=["classes", "sets"])
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-4, 0.1, 1.0, 30.0, 1e4]))
@settings(max_examples=25)
def test_temperature_never_raises_the_loss_or_changes_an_answer(
    labels: Labels, seed: int, scale: float
) -> None:
    logits, wanted = examples(seed, scale, labels)
    task = make_task(labels)
    decoding = task.fit_decoding(logits, wanted, calibrate=True, thresholds=False)
    assert decoding.temperature > 0 and decoding.thresholds is None
    fitted = make_task(labels, decoding)
    before, after = task.scores(logits, wanted), fitted.scores(logits, wanted)
    assert after["loss"] <= before["loss"]
    kept = set(before) - {"loss"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    answer = "label" if labels is CLASSES else "labels"
    own, calibrated = (list(one.predictions(logits)) for one in (task, fitted))
    assert [one[answer] for one in own] == [one[answer] for one in calibrated]


@pytest.mark.parametrize("temperature", [0.25, 4.0])
def test_fit_finds_the_temperature_that_made_the_labels(temperature: float) -> None:
    """The labels are drawn from the probabilities at this temperature."""
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(20_000, 3)).astype(np.float32) * temperature
    odds = np.exp(logits / temperature)
    drawn = rng.random((20_000, 1)) < np.cumsum(odds / odds.sum(1, keepdims=True), axis=1)
    found = make_task(CLASSES).fit_decoding(logits, drawn.argmax(1), True, False)
    assert found.temperature == pytest.approx(temperature, rel=0.05)
    applies = rng.random((20_000, 3)) < odds / (1 + odds)
    found = make_task(SETS).fit_decoding(logits, applies.astype(np.float32), True, False)
    assert found.temperature == pytest.approx(temperature, rel=0.05)


def test_temperature_that_chance_explains_is_not_used() -> None:
    """With 40 examples, the best temperature differs from 1, but hardly fits better."""
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(2_000, 3)).astype(np.float32)
    drawn = (rng.gumbel(size=logits.shape) + logits / 1.3).argmax(1)
    task = make_task(CLASSES)

    def loss(count: int, temperature: float) -> float:
        other = make_task(CLASSES, Decoding(temperature))
        return float(other.scores(logits[:count], drawn[:count])["loss"])

    assert loss(40, 1.3) < loss(40, 1.0)
    assert task.fit_decoding(logits[:40], drawn[:40], True, False) == Decoding()
    assert task.fit_decoding(logits, drawn, True, False).temperature == pytest.approx(1.3, rel=0.15)


def test_temperature_that_does_not_lower_the_calibration_error_is_not_used() -> None:
    assert fitted_temperature(lambda t: (abs(t - 2), 1 / t), 100) == pytest.approx(2, rel=1e-3)
    assert fitted_temperature(lambda t: (abs(t - 2), t), 100) == 1
    assert fitted_temperature(lambda t: (abs(t - 2), 0.1), 100) == 1


def test_calibration_error_matches_values_by_hand() -> None:
    # In fifteenths: (0, 1] has one wrong prediction, (9, 10] two of which one is right, and
    # (14, 15] one that is right.
    confidences = np.array([1, 9.5, 9.9, 15]) / 15
    found = reliability(confidences, np.array([False, True, False, True]))
    gaps = [1 / 15, abs(9.7 / 15 - 1 / 2), 0]
    assert found["expected_calibration_error"] == pytest.approx(np.dot(gaps, [1, 2, 1]) / 4)
    assert [row["examples"] for row in found["reliability"]] == [1, 2, 1]
    assert [row["accuracy"] for row in found["reliability"]] == [0, 0.5, 1]


def test_confidence_zero_and_one_have_bins() -> None:
    found = reliability(np.array([0.0, 1.0]), np.array([True, True]))
    assert [row["confidence"] for row in found["reliability"]] == [0, 1]
    assert found["expected_calibration_error"] == 0.5


@given(
    st.lists(st.tuples(st.floats(0, 1, width=32), st.booleans()), min_size=1, max_size=30),
    st.randoms(),
)
def test_calibration_error_is_a_mean_that_ignores_the_order(
    predictions: list[tuple[float, bool]], random: object
) -> None:
    def error() -> float:
        confidences = np.array([confidence for confidence, _ in predictions])
        right = np.array([own for _, own in predictions])
        found = reliability(confidences, right)
        assert sum(row["examples"] for row in found["reliability"]) == len(predictions)
        return float(found["expected_calibration_error"])

    first = error()
    assert 0 <= first <= 1
    random.shuffle(predictions)  # type: ignore[attr-defined]
    assert error() == pytest.approx(first)


def test_confidences_are_those_of_the_predictions() -> None:
    """A class is predicted with its probability; "the label does not apply" is a prediction too."""
    logits = np.log(np.array([[0.7, 0.2, 0.1], [0.05, 0.9, 0.05]], np.float32))
    found = make_task(CLASSES).report(logits, np.array([0, 0]))
    assert found["reliability"] == [
        {"confidence": pytest.approx(0.7), "accuracy": 1, "examples": 1},
        {"confidence": pytest.approx(0.9), "accuracy": 0, "examples": 1},
    ]
    odds = np.log(np.array([[3, 1 / 3, 9]], np.float32))  # Probabilities 0.75, 0.25 and 0.9.
    found = make_task(SETS).report(odds, np.array([[1, 1, 1]], np.float32))
    assert found["reliability"] == [
        {"confidence": pytest.approx(0.75), "accuracy": 0.5, "examples": 2},
        {"confidence": pytest.approx(0.9), "accuracy": 1, "examples": 1},
    ]


def test_report_uses_the_temperature() -> None:
    logits = np.log(np.array([[0.64, 0.32, 0.04]], np.float32))
    found = make_task(CLASSES, Decoding(temperature=2.0)).report(logits, np.array([0]))
    shares = np.sqrt([0.64, 0.32, 0.04])
    assert found["temperature"] == 2.0
    assert found["reliability"][0]["confidence"] == pytest.approx(0.8 / shares.sum())
    assert found["loss"] == pytest.approx(-np.log(0.8 / shares.sum()))


@pytest.mark.parametrize("wrong", [0.0, -1.0, 1, float("nan"), "2"])
def test_damaged_temperature_is_an_error(wrong: object) -> None:
    with pytest.raises(ValueError, match="is not a valid number"):
        Decoding(temperature=wrong)  # type: ignore[arg-type]
