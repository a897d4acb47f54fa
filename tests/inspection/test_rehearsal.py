"""The rehearsal of training: the weights agree, and a wrong sum of gradients is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertaccum.accumulation import AccumulatingOptimizer
from bertaccum.inspection import rehearsal
from bertaccum.inspection.finding import FAILED, OK
from bertaccum.inspection.tensorflow_check import _rehearsed


def test_weights_of_both_splits_agree(tmp_path: Path) -> None:
    found = rehearsal.rehearse(tmp_path)
    assert found["difference"] <= 1e-6
    assert found["change"] > 1e-4
    assert _rehearsed(found).status == OK


@pytest.mark.slow
def test_a_difference_between_the_splits_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rehearsal.make_optimizer

    def wrong(config: object, updates: int, steps: int) -> AccumulatingOptimizer:
        # With two micro-steps, the schedule is longer, so the second update is larger.
        return made(config, updates * steps, steps)

    monkeypatch.setattr(rehearsal, "make_optimizer", wrong)
    found = rehearsal.rehearse(tmp_path)
    assert found["difference"] > 1e-5
    assert _rehearsed(found).status == FAILED


def test_nan_and_unchanged_weights_are_failures() -> None:
    for difference, change in ((float("nan"), 1.0), (0.0, 0.0), (0.0, float("nan"))):
        assert _rehearsed({"difference": difference, "change": change}).status == FAILED
