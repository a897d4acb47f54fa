"""The rehearsal of training: it accumulates, the results agree, and wrong results are found."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bertaccum.inspection import rehearsal
from bertaccum.inspection.examination import _rehearsed
from bertaccum.inspection.installation import FAILED, OK


def test_rehearsal_accumulates_and_both_splits_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_update, make_window = rehearsal.make_update, rehearsal.make_window
    accumulated, micro_steps = [], []

    def seen_update(*arguments: Any, accumulate: bool) -> Any:
        accumulated.append(accumulate)
        return make_update(*arguments, accumulate=accumulate)

    def seen_window(*arguments: Any) -> Any:
        window = make_window(*arguments)
        micro_steps.append(window.micro_steps)
        return window

    monkeypatch.setattr(rehearsal, "make_update", seen_update)
    monkeypatch.setattr(rehearsal, "make_window", seen_window)
    found = rehearsal.rehearse(tmp_path)
    assert (accumulated, micro_steps) == ([False, True], [1, 1, 2, 2])
    assert found["difference"] <= 1e-6
    assert found["change"] > 1e-4
    assert found["norm_difference"] <= 1e-5
    assert _rehearsed(found).status == OK


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["schedule", "divisor"])
def test_mistake_in_accumulation_is_a_failure(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_optimizer, make_window = rehearsal.make_optimizer, rehearsal.make_window

    def longer_schedule(config: Any, updates: int, steps: int) -> Any:
        return make_optimizer(config, updates * steps, steps)

    def larger_divisor(*arguments: Any) -> Any:
        window = make_window(*arguments)
        return dataclasses.replace(window, whole=window.micro_steps * window.examples)

    if mistake == "schedule":
        monkeypatch.setattr(rehearsal, "make_optimizer", longer_schedule)
    else:
        monkeypatch.setattr(rehearsal, "make_window", larger_divisor)
    found = rehearsal.rehearse(tmp_path)
    name, least = {"schedule": ("difference", 1e-5), "divisor": ("norm_difference", 0.4)}[mistake]
    assert found[name] > least
    assert _rehearsed(found).status == FAILED


def test_differences_nan_and_unchanged_weights_are_failures() -> None:
    good = {"difference": 0.0, "change": 1.0, "norm_difference": 0.0}
    assert _rehearsed(good).status == OK
    nan = float("nan")
    for wrong in (
        *({"difference": nan}, {"difference": 1e-5}, {"change": 0.0}, {"change": nan}),
        *({"norm_difference": nan}, {"norm_difference": 1e-4}),
    ):
        assert _rehearsed(good | wrong).status == FAILED, wrong
