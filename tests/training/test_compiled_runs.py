"""A run decides once whether it compiles its steps, and keeps its updates when interrupted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from resuming import result
from small import write_small_task

from bertaccum.errors import ConfigError, InputError
from bertaccum.inference.trained_model import load_trained
from bertaccum.options.commands import TrainConfig
from bertaccum.runs.record import read_run_config
from bertaccum.system.progress import silent
from bertaccum.training import updater
from bertaccum.training.events import OutOfMemory
from bertaccum.training.train import resume, train

Make = Callable[..., TrainConfig]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    bert_config = write_small_task(tmp_path / "reviews", train=40, dev=4)

    def make(out: str, **options: Any) -> TrainConfig:
        given = {
            "data": str(tmp_path / "reviews"),
            "out": str(tmp_path / out),
            "bert_config": str(bert_config),
            "init_checkpoint": "none",
            "max_seq_length": 16,
            "target_batch": 12,
            "micro_batch": 5,
            "max_updates": 6,
            "save_every": "3",
            "learning_rate": 1e-4,
            "compile": "on",
        }
        return TrainConfig(**given | options)

    return make


def weights(run: TrainConfig) -> np.ndarray:
    model = load_trained(Path(str(run.out))).model
    return np.concatenate([w.numpy().ravel() for w in model.weights])


def test_resumed_run_keeps_the_compiled_steps(config: Make) -> None:
    whole, cut = config("whole"), config("cut", max_updates=3)
    told: list[str] = []
    list(train(whole, lambda what, *_: told.append(what)))
    assert "compiling steps" in told
    list(train(cut, silent))
    out = Path(str(cut.out))
    with pytest.raises(ConfigError, match="`compile` to off"):
        list(resume(out, {"compile": "off"}, silent))
    list(resume(out, {"compile": "auto", "max_updates": 6}, silent))
    assert result(whole.out)["state"] == result(cut.out)["state"]
    assert read_run_config(out).compile == "on"
    plan = json.loads((out / "plan.json").read_text())
    assert plan["shapes"] and 0 < plan["real_share"] <= 1
    plain = config("plain", compile="off")
    list(train(plain, silent))
    assert "compiling steps" in told and read_run_config(Path(str(plain.out))).compile == "off"
    np.testing.assert_allclose(weights(whole), weights(plain), rtol=0, atol=1e-6)


def test_shapes_become_smaller_if_memory_runs_out(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same update is run again with the shapes of smaller micro-batches."""
    whole, failing = config("whole"), config("failing")
    list(train(whole, silent))
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


@pytest.mark.parametrize("cutting", [[1], {"step_tokens": 0}, {"step_tokens": "many"}])
def test_damaged_record_of_the_prices_is_named(config: Make, cutting: Any) -> None:
    run = config("run", max_updates=3, compile="off")
    list(train(run, silent))
    inputs = Path(str(run.out)) / "inputs.json"
    values = json.loads(inputs.read_text()) | {"cutting": cutting}
    inputs.write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"inputs\.json.*damaged"):
        list(resume(Path(str(run.out)), {"max_updates": 6}, silent))
