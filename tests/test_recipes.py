"""The recipes in configs/ are valid and suit their tasks; two of them train a small model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from small import write_small_task

from bertaccum.cli.program import cli
from bertaccum.options.commands import TrainConfig
from bertaccum.options.task_names import CLASSIFICATION, MULTI_LABEL
from bertaccum.tasks.labels import Labels
from bertaccum.training.inputs import check_task_options

ROOT = Path(__file__).resolve().parents[1]
RECIPES = sorted((ROOT / "configs").glob("*.yaml"))
# Those with the most unusual options. Other tests train each task.
TRAINED = ["goemotions", "rare-class"]

# The label of a review of class 0 or 1.
CELLS = {CLASSIFICATION: ["0", "1"], MULTI_LABEL: ["0|1", "1"]}


@pytest.fixture
def data(recipe: Path, tmp_path: Path) -> Path:
    """Return a small data folder for the task of a recipe."""
    folder = tmp_path / "reviews"
    write_small_task(folder, train=96, dev=8)
    task = yaml.safe_load(recipe.read_text(encoding="utf-8")).get("task", CLASSIFICATION)
    for tsv in folder.glob("*.tsv"):
        rows = [row.partition("\t") for row in tsv.read_text().splitlines()]
        labels = ["label", *(CELLS[task][int(label)] for label, _, _ in rows[1:])]
        lines = [f"{own}\t{text}\n" for own, (_, _, text) in zip(labels, rows, strict=True)]
        tsv.write_text("".join(lines))
    return folder


@pytest.mark.parametrize("recipe", [ROOT / f"configs/{n}.yaml" for n in TRAINED], ids=TRAINED)
def test_recipe_trains(recipe: Path, data: Path, tmp_path: Path, program: Any) -> None:
    smaller = {"data": data, "bert_config": data / "bert_config.json", "init_checkpoint": "none"}
    smaller |= {"micro_batch": 4, "max_seq_length": 16, "max_updates": 2, "out": tmp_path / "run"}
    flags = [part for k, v in smaller.items() for part in (f"--{k.replace('_', '-')}", v)]
    # --bert-config replaces `model`, which a flag cannot unset.
    values = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    values.pop("model", None)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
    assert program("train", "--config", tmp_path / "recipe.yaml", *flags).code == 0
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["updates"], summary["examples"]) == (2, 2 * values["target_batch"])


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_valid_suits_its_task_and_states_its_command(recipe: Path) -> None:
    text = recipe.read_text(encoding="utf-8")
    header = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    assert f"bertaccum train --config configs/{recipe.name}" in header
    cli.commands["train"].make_context("train", ["--config", str(recipe)])
    config = TrainConfig(**yaml.safe_load(text))
    task = config.task or CLASSIFICATION
    check_task_options(config, dataclasses.replace(Labels.numbered(2), task=task))
    if recipe.stem == "yelp":
        other = {"micro_batch": 8, "learning_rate": 2e-5}
        defaults = TrainConfig(model="bert-small", init_checkpoint="bert-small", **other)
        assert config == defaults


def test_control_recipe_differs_only_in_target_batch() -> None:
    recipe, control = (
        TrainConfig(**yaml.safe_load((ROOT / f"configs/{name}.yaml").read_text()))
        for name in ("yelp", "yelp-without-accumulation")
    )
    assert recipe.target_batch == 4 * control.target_batch == 32
    same = {**vars(control), "target_batch": 32}
    assert same == vars(recipe)
