"""Options that suit only some tasks."""

from __future__ import annotations

import pytest

from bertaccum.errors import ConfigError
from bertaccum.tasks.labels import Labels
from bertaccum.training.inputs import named_weights


def test_weight_names_a_class_in_any_spelling() -> None:
    labels = Labels(["0", "1", "2"], ["common", "Rare", "3"])
    assert named_weights("rare=2,3.0=4", labels).tolist() == [1, 2, 4]
    with pytest.raises(ConfigError, match="'RARE' is named twice"):
        named_weights("rare=2,RARE=4", labels)
    with pytest.raises(ConfigError, match="'rarely' is not a class; pass balanced, or NAME=W"):
        named_weights("rarely=2", labels)
