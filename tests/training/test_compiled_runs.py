"""A run decides once whether it compiles its steps, and keeps its updates when interrupted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from resuming import killed_copy, result
from small import write_small_task

from bertaccum.data.window_cuts import Prices
from bertaccum.errors import ConfigError, InputError
from bertaccum.inference.trained_model import load_trained
from bertaccum.options.commands import TrainConfig
from bertaccum.runs.record import read_run_config
from bertaccum.system.progress import silent
from bertaccum.training import setup, updater
from bertaccum.training.compilation import Compilation
from bertaccum.training.events import OutOfMemory
from bertaccum.training.train import resume, train

Make = Callable[..., TrainConfig]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    write_small_task(folder / "reviews", train=40, dev=4)
    return folder


def made(folder: Path, out: Path, **options: Any) -> TrainConfig:
    given = {
        "data": str(folder / "reviews"),
        "out": str(out),
        "bert_config": str(folder / "reviews/bert_config.json"),
        "init_checkpoint": "none",
        "max_seq_length": 16,
        "target_batch": 12,
        "micro_batch": 5,
        "max_updates": 4,
        "save_every": "2",
        "learning_rate": 1e-4,
        "compile": "on",
        "noise_scale": "none",
    }
    return TrainConfig(**given | options)


@pytest.fixture
def config(folder: Path, tmp_path: Path) -> Make:
    return lambda out, **options: made(folder, tmp_path / out, **options)


@pytest.fixture(scope="module")
def whole(folder: Path) -> TrainConfig:
    """Return the configuration of a run that has ended and was never interrupted."""
    config, told = made(folder, folder / "whole"), list[str]()
    list(train(config, lambda what, *_: told.append(what)))
    assert "compiling steps" in told
    return config


def weights(run: TrainConfig) -> np.ndarray:
    model = load_trained(Path(str(run.out))).model
    return np.concatenate([w.numpy().ravel() for w in model.weights])


def test_resumed_run_keeps_the_compiled_steps(tmp_path: Path, whole: TrainConfig) -> None:
    out = killed_copy(whole.out, tmp_path / "cut", 2)
    with pytest.raises(ConfigError, match="`compile` to off"):
        list(resume(out, {"compile": "off"}, silent))
    list(resume(out, {"compile": "auto"}, silent))
    assert result(whole.out)["state"] == result(out)["state"]
    assert read_run_config(out).compile == "on"
    plan = json.loads((out / "plan.json").read_text())
    assert plan["shapes"] and 0 < plan["real_share"] <= 1


def test_shapes_become_smaller_if_memory_runs_out(
    config: Make, whole: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same update is run again with the shapes of smaller micro-batches."""
    failing = config("failing")
    true, calls, padded = updater.make_update, [], []

    def make_update(*args: Any, **kwargs: Any) -> Any:
        update = true(*args, **kwargs)

        def run(window: Any) -> Any:
            calls.append(window.examples > 0)
            padded.append(window.padded.prod(axis=1).max())
            if calls[-1] and sum(calls) == 2:  # In the second update
                raise tf.errors.ResourceExhaustedError(None, None, "out of memory")
            return update(window)

        return run

    monkeypatch.setattr(updater, "make_update", make_update)
    events = [e for e in train(failing, silent) if isinstance(e, OutOfMemory)]
    assert [(e.update, e.micro_batch) for e in events] == [(2, 2)]
    failed = [n for n, real in enumerate(calls) if real][1]
    # Micro-batches of 2 instead of 5 examples, for which the steps are compiled first.
    assert max(padded[failed + 1 :]) < padded[failed] and not calls[failed + 1]
    np.testing.assert_allclose(weights(failing), weights(whole), rtol=0, atol=1e-6)


def test_on_and_off_may_be_booleans() -> None:
    """YAML reads both words as booleans."""
    assert [TrainConfig(compile=value).compile for value in (True, False, "auto")] == [
        "on",
        "off",
        "auto",
    ]


def test_resumed_run_cuts_windows_by_the_recorded_prices(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU they were measured, and another measurement would give other micro-steps."""
    run = config("run", max_updates=0, compile="off")
    measured, used = Compilation(False, Prices(3.0, 0.5), 7.0), list[Prices]()
    with monkeypatch.context() as patched:
        patched.setattr(setup, "decide", lambda *_: measured)
        list(train(run, silent))
    assert read_run_config(Path(str(run.out))).compile == "off"
    true = updater.make_window

    def make_window(*args: Any) -> Any:
        used.append(args[-1])
        return true(*args)

    monkeypatch.setattr(updater, "make_window", make_window)
    list(resume(Path(str(run.out)), {"max_updates": 1}, silent))
    assert set(used) == {measured.prices}


def test_damaged_record_of_the_prices_is_named(tmp_path: Path, whole: TrainConfig) -> None:
    run = shutil.copytree(str(whole.out), tmp_path / "run")
    inputs = run / "inputs.json"
    values = json.loads(inputs.read_text())
    for cutting in ([1], {"step_tokens": 0}, {"step_tokens": "many"}):
        inputs.write_text(json.dumps(values | {"cutting": cutting}))
        with pytest.raises(InputError, match=r"inputs\.json.*damaged"):
            list(resume(run, {"max_updates": 6}, silent))
