"""Evaluation interval, best checkpoint, early stopping and runs with several seeds."""

from __future__ import annotations

import dataclasses
import gc
import json
import re
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from resuming import result
from scripted import ScriptedScores, run_until, under
from small import write_small_task

from bertaccum import api
from bertaccum.data.windows import updates_between
from bertaccum.errors import ConfigError, InputError
from bertaccum.options.commands import TrainConfig
from bertaccum.runs.folder import RunFolder
from bertaccum.system.progress import silent
from bertaccum.system.stopping import Stopping
from bertaccum.training import seed_sweep
from bertaccum.training.checkpoints import Position
from bertaccum.training.events import Evaluated, Finished, Started, Stopped
from bertaccum.training.inputs import run_inputs
from bertaccum.training.resume import inputs_of, resolved_config
from bertaccum.training.seed_sweep import write_spread
from bertaccum.training.train import resume, train
from bertaccum.training.updater import Updater

# Accuracy of each evaluation in turn.
ACCURACIES = [0.5, 0.9, 0.9, 0.7, 0.8, 0.99]


@pytest.fixture
def config(tmp_path: Path) -> Any:
    write_small_task(tmp_path / "reviews", train=16, dev=4)

    def make(name: str, **options: object) -> TrainConfig:
        values = {"data": str(tmp_path / "reviews"), "out": str(tmp_path / name)}
        values |= {"bert_config": str(tmp_path / "reviews/bert_config.json")}
        values |= {"init_checkpoint": "none", "max_seq_length": 16, "save_every": "1"}
        values |= {"target_batch": 8, "micro_batch": 8, "epochs": 3.0, "eval_every": 1}
        return TrainConfig(**(values | options))

    return make


def test_patience_stops_training_without_improvement(config: Any) -> None:
    run = config("run", patience=2, best_by="accuracy")
    *_, last = under(ScriptedScores(accuracy=ACCURACIES), train(run, silent))
    assert isinstance(last, Finished)
    # An equal accuracy counts as best: the third evaluation replaces the second.
    assert (last.summary["best_update"], last.summary["best_by"]) == (3, "accuracy")
    assert (last.summary["updates"], last.summary["stopped_early"]) == (5, True)
    kept = json.loads(Path(run.out, "best/evaluation.json").read_text())
    assert kept["update"] == last.summary["best_update"]


@pytest.mark.slow
def test_patience_survives_a_crash(config: Any) -> None:
    under(ScriptedScores(accuracy=ACCURACIES), train(config("whole", patience=2), silent))
    cut = config("cut", patience=2)
    with ScriptedScores(accuracy=ACCURACIES):
        run_until(train(cut, silent), 5)
    # The checkpoint of the fourth update contains its evaluation.
    scores = ScriptedScores(accuracy=ACCURACIES[4:])
    *_, last = under(scores, resume(Path(cut.out), {}, silent))
    assert (last.summary["updates"], last.summary["stopped_early"]) == (5, True)
    assert result(cut.out) == result(config("whole").out)
    # With more patience the run continues, and its sixth evaluation is the best.
    scores = ScriptedScores(accuracy=ACCURACIES[5:])
    *_, last = under(scores, resume(Path(cut.out), {"patience": 3}, silent))
    assert (last.summary["updates"], last.summary["best_update"]) == (6, 6)
    assert not last.summary["stopped_early"]


@pytest.mark.slow
def test_evaluation_twice_per_epoch_and_best_by_selects_the_best_checkpoint(config: Any) -> None:
    scores = ScriptedScores(accuracy=[0.5, 0.9, 0.7], loss=[0.7, 0.9, 0.5])
    run = config("run", eval_every=0.5, epochs=1.5, best_by="loss")
    *events, last = under(scores, train(run, silent))
    assert [e.update for e in events if isinstance(e, Evaluated)] == [1, 2, 3]
    assert (last.summary["best_update"], last.summary["best_by"]) == (3, "loss")


def test_eval_every_in_updates_or_epochs() -> None:
    found = [updates_between(every, 40) for every in (None, 7, 1.0, 0.25, 0.001)]
    assert found == [40, 7, 40, 10, 1]


@pytest.mark.parametrize("value", [0, 0.0, -0.5, float("nan"), float("inf"), True, "often"])
def test_invalid_eval_every_is_an_error(config: Any, value: object) -> None:
    with pytest.raises(ConfigError, match="`eval_every`"):
        config("run", eval_every=value)


def kept() -> tuple[int, int]:
    """Return the number of graphs and of updaters that were not released."""
    gc.collect()
    found = gc.get_objects()
    graphs = [getattr(o, "name", "") for o in found if isinstance(o, tf.Graph)]
    updaters = [o for o in found if type(o) is Updater]
    return sum(name in ("update", "predict") for name in graphs), len(updaters)


@pytest.mark.slow
def test_runs_with_several_seeds_can_be_stopped_and_resumed_and_are_released(config: Any) -> None:
    asked, (graphs, _) = config("many", max_updates=3, seed=5), kept()
    stopping = Stopping()
    for event in api.training_events(asked, seeds=3, stopping=stopping):
        if isinstance(event, Started) and event.folder.name == "seed-6":
            stopping.requested = signal.SIGTERM
    assert isinstance(event, Stopped)
    *_, last = api.training_events(asked, seeds=3)
    left = kept()
    assert left[0] <= graphs and left[1] == 0
    summaries = [e.summary for e in api.training_events(asked, seeds=3) if isinstance(e, Finished)]
    assert (len(summaries), summaries[-1]) == (3, last.summary)
    *_, alone = train(config("alone", max_updates=3, seed=6), silent)
    assert alone.summary["final_loss"] == summaries[1]["final_loss"]
    with pytest.raises(ConfigError, match=r"cannot change `dropout` to 0.3 \(was 0.1\)"):
        list(api.training_events(dataclasses.replace(asked, dropout=0.3), seeds=3))
    *_, longer = api.training_events(dataclasses.replace(asked, max_updates=4), seeds=1)
    assert longer.summary["updates"] == 4
    spread = write_spread(Path(asked.out), [*summaries, summaries[0] | {"final_loss": None}])
    assert spread["runs"] == 4
    losses = [summary["final_loss"] for summary in summaries]
    assert len(set(losses)) == 3
    assert spread["final_loss"]["mean"] == pytest.approx(np.mean(losses))
    assert spread["final_loss"]["std"] == pytest.approx(np.std(losses, ddof=1))
    assert json.loads(Path(asked.out, "seeds.json").read_text()) == spread


def test_seeds_need_out_and_a_single_process(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="several runs need `out`"):
        api.train_seeds(2)
    (tmp_path / "one").mkdir()
    (tmp_path / "one/config.yaml").write_text("seed: 0\n")
    with pytest.raises(ConfigError, match="is a run folder"):
        api.train_seeds(2, config("one"))
    workers = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(workers))
    with pytest.raises(ConfigError, match="`seeds` is for one process"):
        api.train_seeds(2, config("many"))


def test_repeated_command_returns_finished_runs(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It names all options, also those for which the program chooses a value.
    options = vars(config("many", max_updates=0))
    list(api.training_events(seeds=2, **options))
    for name in ("train", "resume"):
        monkeypatch.setattr(seed_sweep, name, mock.Mock(side_effect=AssertionError(name)))
    again = list(api.training_events(seeds=2, **options))
    assert [type(event) for event in again] == [Finished, Finished]


def test_finished_runs_with_other_options_or_data_are_refused(config: Any, tmp_path: Path) -> None:
    limits = {"max_updates": 1, "patience": 2}
    asked = config("many", learning_rate=1e-3, dropout_stream="micro-batch", **limits)
    inputs = inputs_of(run_inputs(asked, silent)) | {"options": {}, "named": ["learning_rate"]}
    for seed in range(2):
        folder = RunFolder(Path(asked.out, f"seed-{seed}"))
        chosen = {"precision": "float32", "compile": "off", "best_by": "accuracy", "seed": seed}
        folder.create(dataclasses.replace(resolved_config(asked, "none"), **chosen), inputs)
        folder.write_json(folder.summary, {"updates": 1})

    def repeat(**options: Any) -> list[Any]:
        return list(api.training_events(dataclasses.replace(asked, **options), seeds=2))

    assert repeat() == repeat(keep=1, precision="auto") == [Finished({"updates": 1})] * 2
    for options, message in (
        ({"learning_rate": None}, "cannot change `learning_rate` to its default (was 0.001)"),
        ({"dropout": 0.3}, "cannot change `dropout` to 0.3 (was 0.1)"),
        ({"max_seq_length": 20, "micro_batch": 4}, "cannot change `max_seq_length` to 20 (was 16)"),
        ({"freeze": "embeddings"}, "cannot change `freeze` to embeddings (was none)"),
        # New runs would be longer than these.
        ({"max_updates": None}, "has `max_updates` 1; repeat this limit or raise it"),
        ({name: None for name in limits}, "has `max_updates` 1 and `patience` 2; repeat"),
    ):
        said = re.escape(f"seed-0, which {message}")
        with pytest.raises(ConfigError, match=said):
            repeat(**options)
    with (tmp_path / "reviews/train.tsv").open("a") as file:
        file.write("1\tgood food\n")
    with pytest.raises(InputError, match=r"seed-0: train\.tsv changed since this run began"):
        repeat()


def test_data_that_change_while_seeds_are_trained_end_the_command(
    config: Any, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"seed-0: train\.tsv changed since this run began"):
        for event in api.training_events(config("many", max_updates=0), seeds=2):
            if isinstance(event, Finished):
                with (tmp_path / "reviews/train.tsv").open("a") as file:
                    file.write("1\tgood food\n")
    assert [path.name for path in (tmp_path / "many").iterdir()] == ["seed-0"]


SAVED = {"update": 4, "accuracy": 0.5, "loss": 0.7, "macro_f1": None, "best": True}


def test_null_of_a_checkpoint_is_a_score_that_is_not_a_number() -> None:
    values = {"run": "mark", "micro_batch": 4, "recompute": "none", "best": SAVED, "last": SAVED}
    position = Position.of(values)
    assert position is not None and position.best is not None
    assert (position.evaluated, position.best.accuracy) == (4, SAVED["accuracy"])
    now = Evaluated(8, True, position.best.scores | {"macro_f1": 0.3})
    assert not now.is_worse_than(position.best, "accuracy")
    assert not now.is_worse_than(position.best, "macro_f1")
    assert position.best.is_worse_than(now, "macro_f1")
    # Saving and loading preserve the position.
    assert Position.of(position.record()) == position
