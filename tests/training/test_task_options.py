"""Options that suit only some tasks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bertaccum.data.token_store import TokenStore
from bertaccum.errors import ConfigError
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels
from bertaccum.training.inputs import BALANCED, class_weights, named_weights, weighted


def test_weight_names_a_class_in_any_spelling() -> None:
    labels = Labels(["0", "1", "2"], ["common", "Rare", "3"])
    assert named_weights("rare=2,3.0=4", labels).tolist() == [1, 2, 4]
    with pytest.raises(ConfigError, match="'RARE' is named twice"):
        named_weights("rare=2,RARE=4", labels)
    with pytest.raises(ConfigError, match="'rarely' is not a class; pass balanced, or NAME=W"):
        named_weights("rarely=2", labels)


def test_balanced_weights_are_those_of_scikit_learn(store: TokenStore) -> None:
    """Each is examples / (classes * examples of the class), times the row's own weight."""
    labels, expected = Labels.numbered(3), np.array([10 / 18, 10 / 9, 10 / 3])
    classes = np.array(([0] * 6 + [1] * 3 + [2]) * 10, np.int32)
    np.testing.assert_allclose(class_weights(BALANCED, labels, classes), expected, rtol=1e-6)
    own = np.arange(100, dtype=np.float32)
    given = dataclasses.replace(store, labels=classes, weights=own)
    found, _ = weighted(given, make_task(labels), BALANCED, Path())
    np.testing.assert_allclose(found.weights, own * expected[classes], rtol=1e-6)
