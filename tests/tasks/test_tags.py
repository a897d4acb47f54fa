"""Scores of tags: entities by type, words that are not read, and tags without a scheme."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bertaccum.errors import ConfigError
from bertaccum.options.task_names import TOKEN_CLASSIFICATION
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.token_classification import NO_TAG

NAMES = ["O", "B-X", "I-X", "B-Y"]


def task(names: list[str] = NAMES, scheme: str | None = "BIO"):
    form = {"separator": " "} | ({"scheme": scheme} if scheme else {})
    numbers = [str(n) for n in range(len(names))]
    return make_task(Labels(numbers, names, task=TOKEN_CLASSIFICATION, format=form))


def padded(sentences: list[str], names: list[str] = NAMES, longest: int = 5) -> np.ndarray:
    rows = [[names.index(tag) for tag in sentence.split()] for sentence in sentences]
    return np.array([row + [NO_TAG] * (longest - len(row)) for row in rows], np.int32)


def logits(predicted: np.ndarray, outputs: int) -> np.ndarray:
    """Return logits of the predicted tags; NaN for words that are not read."""
    found = 3.0 * np.eye(outputs, dtype=np.float32)[np.maximum(predicted, 0)]
    found[predicted == NO_TAG] = np.nan
    return found


LABELS = padded(["B-X I-X O B-Y", "O B-X O", "B-Y O B-X"])
# The last sentence is truncated after its second word.
PREDICTED = padded(["B-X I-X O B-X", "O B-X I-X", "B-Y O"])


def test_scores_of_entities() -> None:
    found = task().report(logits(PREDICTED, 4), LABELS)
    assert (found["examples"], found["words"], found["unread_words"]) == (3, 10, 1)
    # Right: X at 0-2, Y at 0. Predicted: X at 0-2 and 3, X at 1-3, Y at 0. Labeled: 5.
    assert found["entity_precision"] == 2 / 4 and found["entity_recall"] == 2 / 5
    assert found["entity_f1"] == pytest.approx(4 / 9)
    assert found["accuracy"] == 7 / 10
    by_type = {row.name: (row.precision, row.recall, row.examples) for row in found["classes"]}
    assert by_type == {"X": (1 / 3, 1 / 3, 3), "Y": (1, 1 / 2, 2)}
    assert found["macro_entity_f1"] == pytest.approx((1 / 3 + 2 / 3) / 2)
    assert found["confusion_classes"] == ["O", "X", "Y"]
    assert found["confusion_matrix"] == [[3, 1, 0], [1, 3, 0], [0, 1, 1]]
    assert "majority_accuracy" not in found
    own = np.log(np.exp(3) + 3) - 3
    assert found["loss"] == pytest.approx(own + 3 * 2 / 9, rel=1e-6)


def test_tags_without_a_scheme_are_classes_of_words() -> None:
    names = ["NN", "VB", "X"]
    labels, predicted = padded(["NN VB NN", "VB"], names), padded(["NN NN NN", "VB"], names)
    found = task(names, None).report(logits(predicted, 3), labels)
    assert (found["accuracy"], found["majority_class"], found["majority_accuracy"]) == (
        3 / 4,
        "NN",
        1 / 2,
    )
    assert found["macro_f1"] == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert found["confusion_matrix"] == [[2, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert "entity_f1" not in found


@pytest.mark.parametrize(("names", "scheme"), [(["O", "B-X"], "BIO"), (["O", "X"], None)])
def test_words_that_are_not_read_count_as_outside(names: list[str], scheme: str | None) -> None:
    """The scores of words agree with each other, whatever the tags of unread words are."""
    inside = names[1]
    labels = padded([f"O {inside} O O O", f"{inside} O {inside}"], names)
    predicted = padded([f"O {inside}", f"{inside} O"], names)
    found = task(names, scheme).report(logits(predicted, 2), labels)
    assert (found["words"], found["unread_words"], found["accuracy"]) == (8, 4, 7 / 8)
    assert found["confusion_matrix"] == [[5, 0], [1, 2]]
    if scheme is None:
        assert (found["majority_class"], found["majority_accuracy"]) == ("O", 5 / 8)
        assert found["macro_f1"] == pytest.approx((10 / 11 + 4 / 5) / 2)
    assert found["loss"] == pytest.approx(np.log(np.exp(3) + 1) - 3, rel=1e-6)
    assert sum(row["examples"] for row in found["reliability"]) == 4


def test_words_that_are_not_read_are_left_out_if_no_tag_is_outside() -> None:
    names = ["NN", "VB"]
    labels, predicted = padded(["NN VB VB VB"], names), padded(["NN VB"], names)
    found = task(names, None).report(logits(predicted, 2), labels)
    assert (found["words"], found["unread_words"], found["accuracy"]) == (4, 2, 1)
    assert (found["majority_accuracy"], found["macro_f1"]) == (1 / 2, 1)
    assert found["confusion_matrix"] == [[1, 0], [0, 1]]


def test_tags_without_entities_have_no_strict_mode() -> None:
    with pytest.raises(ConfigError, match="`strict` counts entities, but the tags of the run mark"):
        dataclasses.replace(task(["NN", "VB"], None), strict=True)


def test_mistakes_are_the_surest_wrong_tags() -> None:
    found = task().mistakes(logits(PREDICTED, 4), LABELS, 5)
    assert [(one["index"], one["word"], one["label"], one["prediction"]) for one in found] == [
        (0, 3, "B-Y", "B-X"),
        (1, 2, "O", "I-X"),
    ]


def test_logits_that_are_not_finite_give_scores() -> None:
    found = task().scores(np.full((3, 5, 4), np.nan, np.float32), LABELS)
    assert np.isnan(found["loss"]) and found["unread_words"] == 10
