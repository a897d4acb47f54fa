"""The recipes in configs/ are valid, and those with unusual options train a small model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from small import write_small_task

from bertaccum.cli.program import cli, main
from bertaccum.options.commands import TrainConfig
from bertaccum.options.task_names import (
    CLASSIFICATION,
    MULTI_LABEL,
    REGRESSION,
    TOKEN_CLASSIFICATION,
)

ROOT = Path(__file__).resolve().parents[1]
RECIPES = sorted((ROOT / "configs").glob("*.yaml"))
# Each task, metric of the best checkpoint, fit of the decoding, and class weight; the other recipes
# differ from these only in numbers.
TRAINED = ["cola", "goemotions", "names", "rare-class", "sick-entailment", "sick-relatedness"]
TRAINED += ["yelp"]

# The label of a review of class 0 or 1, for each kind of task.
CELLS = {CLASSIFICATION: ["0", "1"], REGRESSION: ["1.5", "4.0"], MULTI_LABEL: ["0|1", "1"]}


def cell(task: str, label: int, text: str) -> str:
    """Return the cell of the label of a review; all of its words have the same tag."""
    if task == TOKEN_CLASSIFICATION:
        return " ".join(str(label) for _ in text.split())
    return CELLS[task][label]


@pytest.fixture
def data(recipe: Path, tmp_path: Path) -> Path:
    """Return a small data folder for the task of a recipe."""
    folder = tmp_path / "reviews"
    write_small_task(folder, train=96, dev=8)
    task = yaml.safe_load(recipe.read_text(encoding="utf-8")).get("task", CLASSIFICATION)
    for tsv in folder.glob("*.tsv"):
        rows = [row.partition("\t") for row in tsv.read_text().splitlines()]
        labels = ["label", *(cell(task, int(label), text) for label, _, text in rows[1:])]
        lines = [f"{own}\t{text}\n" for own, (_, _, text) in zip(labels, rows, strict=True)]
        tsv.write_text("".join(lines))
    return folder


@pytest.mark.parametrize("recipe", [ROOT / f"configs/{n}.yaml" for n in TRAINED], ids=TRAINED)
def test_recipe_trains(recipe: Path, data: Path, tmp_path: Path) -> None:
    smaller = {"data": data, "bert_config": data / "bert_config.json", "init_checkpoint": "none"}
    smaller |= {"micro_batch": 4, "max_seq_length": 16, "max_updates": 2, "out": tmp_path / "run"}
    flags = [str(p) for k, v in smaller.items() for p in (f"--{k.replace('_', '-')}", v)]
    # --bert-config replaces `model`, which a flag cannot unset.
    values = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    values.pop("model", None)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(SystemExit) as end:
        main(["train", "--config", str(tmp_path / "recipe.yaml"), *flags])
    assert not end.value.code
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["updates"], summary["examples"]) == (2, 2 * values["target_batch"])


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_valid_and_states_its_command(recipe: Path) -> None:
    text = recipe.read_text(encoding="utf-8")
    header = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    assert f"bertaccum train --config configs/{recipe.name}" in header
    cli.commands["train"].make_context("train", ["--config", str(recipe)])
    if recipe.stem == "yelp":
        other = {"micro_batch": 8, "learning_rate": 2e-5}
        defaults = TrainConfig(model="bert-small", init_checkpoint="bert-small", **other)
        assert TrainConfig(**yaml.safe_load(text)) == defaults


def test_control_recipe_differs_only_in_target_batch() -> None:
    recipe, control = (
        TrainConfig(**yaml.safe_load((ROOT / f"configs/{name}.yaml").read_text()))
        for name in ("yelp", "yelp-without-accumulation")
    )
    assert recipe.target_batch == 4 * control.target_batch == 32
    same = {**vars(control), "target_batch": 32}
    assert same == vars(recipe)
