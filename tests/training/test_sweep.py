"""`bertaccum sweep`: all combinations, successive halving, failures, and continuing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from simulated import Simulated, SimulatedXLA
from small import write_small_task

from bertaccum import api
from bertaccum.cli.commands.sweep import _best
from bertaccum.cli.program import main
from bertaccum.errors import ConfigError, DivergedError, InputError, RunError
from bertaccum.options.commands import PAPER, TrainConfig
from bertaccum.planning import compile_cost, measured_plan
from bertaccum.reporting import figures
from bertaccum.runs.folder import RunFolder
from bertaccum.system.progress import silent
from bertaccum.training import seed_sweep
from bertaccum.training import sweep as module
from bertaccum.training.events import Event, Finished, Stopped
from bertaccum.training.inputs import run_inputs, with_commit
from bertaccum.training.resume import inputs_of, resolved_config
from bertaccum.training.setup import connect, set_up
from bertaccum.training.sweep import Cell, Sweep, cells_of
from bertaccum.training.train import plan_ahead

# With 320 rows and three epochs, batches of 16 take 60 updates, and batches of 32 take 30.
GRID = {"target_batch": [16, 32], "learning_rate": [1e-5, 2e-5, 3e-5, 4e-5, 5e-5]}


class Trainer:
    """A stand-in for training, which records the runs and knows their scores."""

    def __init__(
        self, fails: float = 0.0, stops: float = 0.0, least: float = 0.0, passes: int = 0
    ) -> None:
        self.runs: list[tuple[str, int, int | None]] = []
        self.fails, self.stops, self.least, self.passes = fails, stops, least, passes
        self.error: type[RunError] = DivergedError

    def __call__(self, config: TrainConfig, *_: Any) -> Iterator[Event]:
        assert config.out is not None
        self.runs.append((Path(config.out).parent.name, config.seed, config.max_updates))
        if config.learning_rate == self.fails and (config.max_updates or 60) > self.passes:
            raise self.error("the loss is not finite", "lower `learning_rate`")
        if config.learning_rate == self.stops:
            yield Stopped(1, 15, Path(config.out))
            return
        score = config.learning_rate * 1e4 + config.target_batch / 1000 + config.seed / 1e4
        score = max(score, self.least)
        yield Finished(
            {
                "best_by": "accuracy",
                "best_metric": {"name": "accuracy", "value": score, "update": 1},
                "updates": config.max_updates or (60 if config.target_batch == 16 else 30),
                "total_seconds": 2.0,
            }
        )


@pytest.fixture(autouse=True)
def free_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip freeing the model after each run, which takes seconds in a large test process."""
    monkeypatch.setattr(seed_sweep, "free_models", lambda: None)


@pytest.fixture(autouse=True)
def missing_data_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs of `Trainer`, which reads no data, have no inputs if their data are missing."""

    def found(config: TrainConfig, progress: Any) -> Any:
        return run_inputs(config, progress) if Path(config.data).exists() else None

    for owner in (module, seed_sweep):
        monkeypatch.setattr(owner, "run_inputs", found)
        monkeypatch.setattr(owner, "inputs_of", lambda inputs: inputs_of(inputs) if inputs else {})


def run(
    folder: Path, trainer: Trainer, halving: bool = False, seeds: int = 1, **options: Any
) -> Sweep:
    config = TrainConfig(**options)
    sweep = Sweep(config, folder, GRID, seeds, halving, {None: 320}, options | {"out": str(folder)})
    fails = mock.Mock(side_effect=AssertionError("nothing to resume"))
    with mock.patch.multiple(seed_sweep, train=trainer, resume=fails):
        list(sweep.events(silent))
    return sweep


def test_grid_trains_all_combinations(tmp_path: Path) -> None:
    trainer = Trainer()
    found = run(tmp_path, trainer, seeds=2).result()
    assert len(trainer.runs) == 20 and {most for *_, most in trainer.runs} == {None}
    assert found["best"] == {"target_batch": 32, "learning_rate": 5e-5}
    assert found["updates"] == found["grid_updates"] == 2 * 5 * (60 + 30)
    first = found["cells"][0]
    assert (first["mean"], first["runs"]) == (pytest.approx(0.53205), 2)
    assert first["std"] == pytest.approx(1e-4 / 2**0.5)
    assert found["seconds"] == 40


@pytest.mark.parametrize("halving", [True, False])
def test_all_cells_are_planned_before_the_first_run_uses_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, halving: bool
) -> None:
    """Until the process ends, that run keeps the memory that a plan must measure."""
    trainer, planned = Trainer(), list[TrainConfig]()

    def plan(config: TrainConfig, _: object) -> None:
        assert trainer.runs == []
        planned.append(config)
        if config.target_batch == 16 and config.learning_rate == 5e-5:
            raise RunError("nothing fits")

    monkeypatch.setattr(module, "gpus", lambda: ["GPU"])
    monkeypatch.setattr(module, "plan_ahead", plan)
    found = run(tmp_path / "first", trainer, halving).result()
    assert [config.target_batch for config in planned] == [16] * 5 + [32] * 5
    assert [config.max_updates for config in planned] == (
        [7] * 5 + [4] * 5 if halving else [None] * 10
    )
    assert [cell["failed"] for cell in found["cells"]] == [None] * 9 + ["nothing fits"]
    assert found["best"] == {"target_batch": 32, "learning_rate": 5e-5}
    planned.clear()
    trainer = Trainer()
    run(tmp_path / "first", trainer, halving)
    assert len(planned) == 1 and trainer.runs == []  # The others are done.
    run(tmp_path / "limited", trainer, memory_limit="4GiB")
    assert len(planned) == 1


def test_planned_run_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "cache"))
    for of_plans in (measured_plan, compile_cost):
        monkeypatch.setattr(of_plans, "MeasurementProcess", SimulatedXLA)
    monkeypatch.setattr(Simulated, "started", [])
    model = write_small_task(tmp_path / "reviews", train=40, dev=8)
    options = {"data": str(tmp_path / "reviews"), "bert_config": str(model), "compile": "on"}
    config = TrainConfig(**options, init_checkpoint="none", max_seq_length=12)
    plan_ahead(config, silent)
    assert len(Simulated.started) == 3  # The candidates, the best one, and its compiled steps.
    longer = dataclasses.replace(config, epochs=9.0, learning_rate=1e-3)
    setup = set_up(longer, connect(longer, None, silent))
    assert setup.compilation.cost is not None and len(Simulated.started) == 3


@pytest.mark.parametrize("halving", [True, False])
def test_sweep_without_updates_only_evaluates(tmp_path: Path, halving: bool) -> None:
    trainer = Trainer()
    found = run(tmp_path, trainer, halving=halving, max_updates=0).result()
    assert {most for *_, most in trainer.runs} == {0}
    assert found["grid_updates"] == 0


def test_halving_counts_the_unlabelled_texts_of_each_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_small_task(tmp_path / "reviews", train=16, dev=2)
    grid = {"unlabelled": [None]}
    for count in (16, 128):
        path = tmp_path / f"{count}.txt"
        path.write_text("good food\n" * count)
        grid["unlabelled"].append(str(path))
    trainer = Trainer(least=1.0)  # All cells have the same score, so that all train to the end.
    monkeypatch.setattr(seed_sweep, "train", trainer)
    monkeypatch.setattr(seed_sweep, "check_repeated", lambda *_: None)
    config = TrainConfig(
        data=str(tmp_path / "reviews"),
        init_checkpoint="none",
        teacher="teacher",
        learning_rate=1e-5,
        target_batch=16,
        epochs=3.0,
        unlabelled=grid["unlabelled"][1],
    )
    monkeypatch.setattr(module, "run_inputs", lambda *_: None)
    monkeypatch.setattr(seed_sweep, "run_inputs", lambda *_: None)
    found = module.search(config, tmp_path / "out", grid, 1, True, {}, silent, None, None)
    assert [most for *_, most in trainer.runs] == [1, 1, 3, 1, 2, 9, 3, 6, 27]
    assert found["grid_updates"] == 3 + 6 + 27


def test_halving_does_not_choose_between_equal_scores(tmp_path: Path) -> None:
    # All ten cells have the same score, so that all train to the end.
    trainer = Trainer(least=0.9)
    run(tmp_path / "all", trainer, halving=True)
    assert len(trainer.runs) == 30
    # Two cells are better than eight equal ones, of which only two would fit in the third.
    trainer = Trainer(least=0.45)
    run(tmp_path / "two", trainer, halving=True)
    assert len(trainer.runs) == 10 + 2 + 1


def test_halving_trains_only_the_best_to_the_end(tmp_path: Path) -> None:
    trainer = Trainer()
    found = run(tmp_path, trainer, halving=True).result()
    assert found["best"] == {"target_batch": 32, "learning_rate": 5e-5}
    # Ten cells to a ninth, four to a third, two to the end.
    by_most = [most for *_, most in trainer.runs]
    assert by_most == [7] * 5 + [4] * 5 + [10, 20, 10, 20] + [30, 60]
    fractions = [1.0] * 2 + [1 / 3] * 2 + [1 / 9] * 6
    assert [c["fraction"] for c in found["cells"]] == pytest.approx(fractions, abs=1e-4)
    assert found["grid_updates"] == 450


@pytest.mark.parametrize("halving", [False, True])
def test_failed_cells_are_recorded_and_skipped(tmp_path: Path, halving: bool) -> None:
    found = run(tmp_path, Trainer(fails=5e-5), halving).result()
    assert found["best"] == {"target_batch": 32, "learning_rate": 4e-5}
    failed = [cell for cell in found["cells"] if cell["failed"]]
    assert found["cells"][-2:] == failed
    assert failed[0]["failed"] == "the loss is not finite; lower `learning_rate`"
    assert failed[0]["mean"] is None
    again = Trainer()
    assert run(tmp_path, again, halving).result() == found and again.runs == []


def test_failure_in_a_later_round_does_not_bring_cells_back(tmp_path: Path) -> None:
    found = run(tmp_path, Trainer(fails=4e-5, passes=7), halving=True).result()
    again = Trainer()
    assert run(tmp_path, again, halving=True).result() == found and again.runs == []


def test_cells_that_failed_for_another_reason_are_trained_again(tmp_path: Path) -> None:
    trainer, again = Trainer(fails=5e-5), Trainer()
    trainer.error = RunError
    found = run(tmp_path, trainer).result()
    assert [cell["failed"] is None for cell in found["cells"]] == [True] * 8 + [False] * 2
    assert run(tmp_path, again).result()["best"]["learning_rate"] == 5e-5
    assert len(again.runs) == 2


def test_heat_map_finds_values_that_were_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Python, a switch may be a bool."""
    write_small_task(tmp_path / "reviews", train=4, dev=2)
    grid = {"compile": [True, False], "learning_rate": [1e-3, 2e-3]}
    monkeypatch.setattr(seed_sweep, "train", Trainer())
    config = TrainConfig(data=str(tmp_path / "reviews"), init_checkpoint="none")
    options = config, tmp_path / "out", grid, 1, False, {}, silent, None, None
    assert len(module.search(*options)["figures"]) == 2


def test_heat_map_compares_what_was_trained_furthest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(figures, "_drawn", lambda values, *_: drawn.append(values.tolist()))
    monkeypatch.setattr(figures, "files_of", lambda *_: {})
    grid = {"learning_rate": [1e-3], "epochs": [1.0, 2.0], "seed": [0, 1]}
    scores = [(0, 1.0, 1 / 9, 0.9), (1, 1.0, 1.0, 0.7), (0, 2.0, 1.0, 0.5), (1, 2.0, 1.0, 0.6)]
    cells = [
        {"options": {"learning_rate": 1e-3, "epochs": e, "seed": s}, "fraction": f, "mean": mean}
        for s, e, f, mean in scores
    ]
    figures.write_heat_map(tmp_path, grid, {"best_by": "accuracy", "cells": cells})
    assert drawn == [[[0.7, 0.6]]]


@pytest.mark.parametrize("halving", [True, False])
def test_stopped_sweep_continues_where_it_stopped(tmp_path: Path, halving: bool) -> None:
    whole, stopped, rest = Trainer(), Trainer(stops=3e-5), Trainer()
    expected = run(tmp_path / "whole", whole, halving).result()
    run(tmp_path / "cut", stopped, halving)
    assert len(stopped.runs) == 3
    assert run(tmp_path / "cut", rest, halving).result() == expected
    assert stopped.runs[:2] + rest.runs == whole.runs


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"class_weight": ["balanced", "nope=2"]}, "'nope' is not a class"),
        ({"thresholds": ["0.5", "dev"]}, "`thresholds` cannot be used with the task"),
        ({"train_layers": [1, 2]}, "`train_layers` is 2, but the model has 1 layer"),
    ],
)
def test_all_combinations_are_checked_before_the_first_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grid: Any, message: str
) -> None:
    model, trainer = write_small_task(tmp_path / "reviews", train=4, dev=2), Trainer()
    monkeypatch.setattr(seed_sweep, "train", trainer)
    options: dict[str, Any] = {"data": tmp_path / "reviews", "bert_config": model}
    options |= {"init_checkpoint": "none", "max_seq_length": 12, "out": tmp_path / "runs"}
    with pytest.raises(ConfigError, match=message):
        api.sweep(grid, **options)
    assert trainer.runs == [] and not (tmp_path / "runs").exists()


def test_sweep_in_python_needs_only_its_models_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `init_checkpoint`, the options of the whole sweep select no model."""
    model, trainer = write_small_task(tmp_path / "reviews", train=4, dev=2), Trainer()
    monkeypatch.setattr(seed_sweep, "train", trainer)
    options: dict[str, Any] = {"data": tmp_path / "reviews", "bert_config": model}
    options |= {"max_seq_length": np.int64(12), "learning_rate": np.float32(1e-3)}
    for _ in range(2):
        api.sweep({"init_checkpoint": ["none"]}, **options, out=tmp_path / "runs")
    assert len(trainer.runs) == 1
    asked = json.loads((tmp_path / "runs/sweep.json").read_text())["asked"]["options"]
    assert (asked["data"], asked["max_seq_length"]) == (str(tmp_path / "reviews"), 12)


def test_other_options_need_another_folder(tmp_path: Path) -> None:
    run(tmp_path, Trainer())
    for options in ({"halving": True}, {"seeds": 2}, {"epochs": 2.0}):
        with pytest.raises(ConfigError, match="another grid or other options"):
            run(tmp_path, Trainer(), **options)
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(ConfigError, match="another grid or other options"):
        run(tmp_path, Trainer())


def test_changed_data_need_another_folder(tmp_path: Path) -> None:
    encoder, data = write_small_task(tmp_path / "reviews", train=4, dev=2), tmp_path / "reviews"
    options = {"data": str(data), "bert_config": str(encoder), "init_checkpoint": "none"}
    options |= {"max_seq_length": 12}
    run(tmp_path, Trainer(), **options)
    cell = TrainConfig(**options, target_batch=32, learning_rate=5e-5)
    folder = RunFolder(tmp_path / "target_batch=32,learning_rate=5e-05/seed-0")
    folder.create(resolved_config(cell, "none"), inputs_of(run_inputs(cell, silent)))
    run(tmp_path, Trainer(), **options)
    (data / "dev.tsv").write_text("label\ttext\n1\tgood\n0\tbad\n")
    with pytest.raises(InputError, match=r"seed-0: dev\.tsv changed since this run began"):
        run(tmp_path, Trainer(), **options)


def test_data_that_change_during_a_sweep_end_it(tmp_path: Path) -> None:
    encoder, data = write_small_task(tmp_path / "reviews", train=4, dev=2), tmp_path / "reviews"
    options = {"data": str(data), "bert_config": str(encoder), "init_checkpoint": "none"}

    class Editor(Trainer):
        def __call__(self, *given: Any) -> Iterator[Event]:
            yield from super().__call__(*given)
            (data / "dev.tsv").write_text("label\ttext\n1\tgood\n0\tbad\n")

    trainer, cell = Editor(), r"target_batch=16,learning_rate=2e-05"
    with pytest.raises(InputError, match=rf"{cell}: dev\.tsv changed since this sweep began; rest"):
        run(tmp_path / "runs", trainer, **options, max_seq_length=12)
    assert len(trainer.runs) == 1


@pytest.mark.parametrize("option", ["init_checkpoint", "teacher"])
@pytest.mark.parametrize("halving", [False, True])
def test_all_runs_use_the_model_to_which_a_link_pointed(
    tmp_path: Path, option: str, halving: bool
) -> None:
    """`runs/latest` points to another run as soon as that run starts."""
    link, used = tmp_path / "latest", set()

    class Starter(Trainer):
        def __call__(self, config: TrainConfig, *given: Any) -> Iterator[Event]:
            yield from super().__call__(config, *given)
            used.add(getattr(config, option))
            link.unlink()
            link.symlink_to("two")

    for name in ("one", "two"):
        RunFolder(tmp_path / name).create(TrainConfig(), {})
    link.symlink_to("one")
    run(tmp_path / "runs", Starter(), halving, seeds=2, **{option: str(link)})
    assert used == {str(tmp_path / "one")}


def test_links_to_other_weights_keep_their_names(tmp_path: Path) -> None:
    """A link may be named uncased, and its target a hash."""
    (tmp_path / "5f3a").mkdir()
    link = tmp_path / "bert-base-uncased"
    link.symlink_to("5f3a")
    given = TrainConfig(init_checkpoint=str(link))
    assert with_commit(given, tmp_path / "runs", silent) == given


def test_resumed_runs_are_asked_for_the_model_to_which_a_link_pointed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, in a later round of halving, after the link has moved."""
    RunFolder(tmp_path / "one").create(TrainConfig(), {})
    (tmp_path / "latest").symlink_to("one")
    named = {"init_checkpoint": str(tmp_path / "latest")}
    RunFolder(tmp_path / "runs/seed-0").create(TrainConfig(**named), {})
    resumed = mock.Mock(return_value=[])
    monkeypatch.setattr(seed_sweep, "check_repeated", lambda *_: None)
    monkeypatch.setattr(seed_sweep, "resume", resumed)
    list(seed_sweep.train_seeds(TrainConfig(**named), tmp_path / "runs", 1, named, silent))
    assert resumed.call_args.args[1] == {"init_checkpoint": str(tmp_path / "one")}


@pytest.mark.parametrize("halving", [False, True])
@pytest.mark.parametrize("key", ["best_by", "cells", "rounds", "score", "seconds"])
def test_damaged_record_of_a_sweep_is_refused(tmp_path: Path, key: str, halving: bool) -> None:
    run(tmp_path, Trainer(), halving)
    path = tmp_path / "sweep.json"
    text = path.read_text().replace(f'"{key}"', '"other"')
    path.write_text(text)
    # Without it, cells of later rounds of halving would begin again with fewer updates.
    trainer, remedy = Trainer(), "restore it, or" if halving else "delete it and"
    message = rf"sweep.json: is damaged \(KeyError: '{key}'\); {remedy}"
    with pytest.raises(InputError, match=message):
        run(tmp_path, trainer, halving)
    assert trainer.runs == [] and path.read_text() == text


def test_invalid_grids_are_refused() -> None:
    config = TrainConfig(out="runs/x")
    assert len(cells_of(config, PAPER)) == 18
    (cell,) = cells_of(config, {"learning_rate": np.array([1e-5])})
    assert type(cell.options["learning_rate"]) is float
    for grid in ({"seed": [1, 2]}, {}, {"epochs": []}, {"learning_rate": [1e-5, -1.0]}):
        with pytest.raises(ConfigError):
            cells_of(config, grid)
    # Scores of two metrics cannot be ranked, and the devices of a process cannot change.
    for grid in (
        {"best_by": ["accuracy", "loss"]},
        {"task": ["classification", "regression"]},
        {"replicas": [1, 2]},
    ):
        with pytest.raises(ConfigError, match=rf"`{min(grid)}` cannot be in a grid; set it as"):
            cells_of(config, grid)
    with pytest.raises(ConfigError, match="`nope` in the grid is no option of a run; correct"):
        api.sweep({"nope": [1]}, out="runs/x")


def test_equal_values_are_one_combination() -> None:
    cells = cells_of(TrainConfig(), {"learning_rate": [5e-5, 0.00005], "eval_every": [1, 1.0]})
    # 1 is an update, and 1.0 an epoch.
    assert [str(cell.options["eval_every"]) for cell in cells] == ["1", "1.0"]


def test_long_names_of_cells_are_cut(tmp_path: Path) -> None:
    assert Cell({"target_batch": 16, "epochs": 2.0}).name == "target_batch=16,epochs=2.0"
    cells = [Cell({"unlabelled": "ä" * 120, "epochs": epochs}) for epochs in (2.0, 3.0)]
    names = {cell.name for cell in cells}
    assert len(names) == 2 and names == {Cell(cell.options).name for cell in cells}
    for name in names:
        assert name.startswith("unlabelled=" + "ä" * 69 + "-") and len(name.encode()) < 200


def test_paths_in_names_of_cells_are_no_folders() -> None:
    names = {Cell({"init_checkpoint": path}).name for path in ("runs/a", "runs_a", "runs/b")}
    assert len(names) == 3 and "/" not in "".join(names)


def test_best_command_has_only_flags_of_train() -> None:
    named = {"calibrate": False, "lower_case": False, "keep_head": True, "out": "sweep"}
    command = _best(named, {"best": {"epochs": 2.0}})
    assert command == "bertaccum train --no-lower-case --keep-head --epochs 2.0"


def sweep(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["sweep", *map(str, arguments)])
    return end.value.code or 0, *capsys.readouterr()


def test_grid_files_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = tmp_path / "grid.yaml"
    for text, problem in {
        "learning_rat: [1e-5]": "did you mean learning_rate?",
        "learning_rate: 1e-5": "needs a list of values",
        "epochs: [2, many]": "epochs",
        "learning_rate: [1e-5": "is not plain YAML",
    }.items():
        grid.write_text(text)
        code, out, err = sweep(capsys, "--grid", grid, "--out", tmp_path / "runs")
        assert (code, out) == (2, "") and problem in err and err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_flags_that_the_grid_replaces_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "grid.yaml").write_text("epochs: [2, 3]\n")
    for flags, problem in (
        (["--epochs", 1], "--epochs has no effect, because the grid has epochs: 2.0, 3.0, 4.0"),
        (["--grid", tmp_path / "grid.yaml", "--epochs", 1], "the grid has epochs: 2.0, 3.0;"),
    ):
        code, _, err = sweep(capsys, *flags, "--out", tmp_path / "runs")
        assert code == 2 and problem in err
    assert not (tmp_path / "runs").exists()


def test_command_fails_if_every_run_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "sweep", lambda *_, **__: {"best": None, "cells": []})
    code, out, err = sweep(capsys, "--out", tmp_path / "runs", "--json")
    assert (code, json.loads(out)["best"]) == (1, None)
    assert err.splitlines()[-1].startswith("error: every run failed; repeat the sweep")


def test_command_trains_draws_and_names_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = write_small_task(Path("reviews"), train=40, dev=10)
    Path("grid.yaml").write_text("learning_rate: [1e-3, 1e-9]\nepochs: [1]\n")
    options = ["--data", "reviews", "--bert-config", model, "--init-checkpoint", "none"]
    options += ["--max-seq-length", 12, "--micro-batch", 8, "--target-batch", 8]
    options += ["--noise-scale", "none"]
    options += ["--grid", "grid.yaml", "--out", "runs/mine", "--best-by", "loss"]
    code, out, _ = sweep(capsys, *options, "--json")
    found = json.loads(out)
    assert code == 0 and found["best"]["learning_rate"] == 1e-3
    assert (found["updates"], found["grid_updates"]) == (10, 10)
    assert sorted(p.name for p in Path("runs/mine").glob("*,*")) == [
        "learning_rate=0.001,epochs=1.0",
        "learning_rate=1e-09,epochs=1.0",
    ]
    assert [Path(path).name for path in found["figures"]] == ["sweep.png", "sweep.svg"]
    assert all(Path(path).stat().st_size > 1000 for path in found["figures"])
    code, out, _ = sweep(capsys, *options)  # Everything is done, so this only prints.
    command = next(line for line in out.splitlines() if line.startswith("best: "))
    assert "--learning-rate 0.001" in command and "--out" not in command
    assert "10 updates" in out
