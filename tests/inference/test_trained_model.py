"""A run may save a better model while a command uses its best one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs_of_tasks import Run, RunOf

from bertaccum import api
from bertaccum.errors import RunError
from bertaccum.inference import evaluate, trained_model
from bertaccum.inference.trained_model import TrainedModel, load_trained
from bertaccum.tasks.head import load_run
from bertaccum.tasks.model_files import ModelFiles
from bertaccum.training.checkpoints import save_best
from bertaccum.training.events import Evaluated


@pytest.fixture
def run(run_of: RunOf, tmp_path: Path) -> Run:
    return run_of("calibrated").copied(tmp_path)


def better(run: Run) -> TrainedModel:
    """Return a model with other weights than the best one of the run."""
    model = load_trained(run.folder.path)
    for weight in model.model.weights:
        weight.assign(2 * weight)
    return model


def save(run: Run, model: TrainedModel, update: int) -> None:
    evaluated = Evaluated(update, True, {"loss": 0.4, "examples": 6})
    save_best(model.model, model.files, evaluated, run.folder)


@pytest.mark.parametrize("before", [True, False])
def test_model_that_is_replaced_is_loaded_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    new, loaded = better(run), []

    def load(*args: Any, **options: Any) -> None:
        loaded.append(args)
        if len(loaded) == 1 and before:
            run.folder.best.rename(run.folder.path / "removed")
            save(run, new, 8)
            raise FileNotFoundError
        load_run(*args, **options)
        if len(loaded) == 1:
            save(run, new, 8)

    monkeypatch.setattr(trained_model, "load_run", load)
    found = load_trained(run.folder.path)
    assert (found.update, found.is_replaced, len(loaded)) == (8, False, 2)
    for own, other in zip(found.model.weights, new.model.weights, strict=True):
        np.testing.assert_array_equal(own, other)


def test_model_that_is_replaced_again_and_again_is_an_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, updates = better(run), iter(range(8, 99))
    monkeypatch.setattr(trained_model, "load_run", lambda *_, **__: save(run, new, next(updates)))
    with pytest.raises(RunError, match="run: the run replaced its best checkpoint meanwhile"):
        load_trained(run.folder.path)
    assert next(updates) == 11


def test_results_are_those_of_the_model_that_was_loaded(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, new = run.folder.path, better(run)

    def load_and_replace(_: Path) -> TrainedModel:
        loaded = load_trained(path)
        save(run, new, (loaded.update or 0) + 1)
        return loaded

    monkeypatch.setattr(evaluate, "load_trained", load_and_replace)
    assert api.evaluate(run=str(path), keep=False).update == 7
    with pytest.raises(RunError, match=r"saved a better model meanwhile.*run `bertaccum eval`"):
        api.evaluate(run=str(path), keep=False, calibrate=False)
    assert ModelFiles.read(run.folder.best).decoding == run.kind.decoding


def test_values_that_another_evaluation_fits_meanwhile_are_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = dataclasses.replace(run.kind.decoding, temperature=3.0)

    def load_and_fit(path: Path) -> TrainedModel:
        loaded = load_trained(path)
        dataclasses.replace(loaded.files, decoding=other).write_decoding(loaded.folder)
        return loaded

    monkeypatch.setattr(evaluate, "load_trained", load_and_fit)
    with pytest.raises(RunError, match=r"another evaluation fitted.*run `bertaccum eval` again"):
        api.evaluate(run=str(run.folder.path), keep=False, calibrate=False)
    assert ModelFiles.read(run.folder.best).decoding == other
