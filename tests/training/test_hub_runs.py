"""Runs begin with one commit of a checkpoint on the Hub, although its branch moves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from hub_client import HubClient
from small import write_small_task

from bertaccum.bert.encoder import build_encoder
from bertaccum.bert.encoder_config import read_bert_config
from bertaccum.bert.huggingface_folder import write_description
from bertaccum.bert.pretrained_weights import save_huggingface
from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer_files import read_tokenizer
from bertaccum.tasks.head import build_classifier

NAME = "owner/my-bert"
OPTIONS = (
    *("--data", "reviews", "--init-checkpoint", NAME, "--max-seq-length", 16),
    *("--target-batch", 8, "--micro-batch", 4, "--epochs", 1, "--compile", "off"),
    *("--noise-scale", "none"),
)
# Trains a grid of two rates, but ends the process when the first one has finished.
HALF_A_SWEEP = """
import json, os, sys, bertaccum
def end(event):
    if isinstance(event, bertaccum.Finished):
        os._exit(3)
bertaccum.sweep({"learning_rate": [1e-3, 2e-3]}, callback=end, **json.loads(sys.argv[1]))
"""


@pytest.fixture
def commits(client: HubClient) -> list[str]:
    """Return two commits of a model; the main branch is at the first."""
    config = read_bert_config(write_small_task(client.folder / "reviews", train=16, dev=8))
    vocabulary, files = read_tokenizer(client.folder / "reviews/vocab.txt"), []
    for number in range(2):
        folder = client.folder / f"model{number}"
        folder.mkdir()
        write_description(folder, config, Tokenization(vocabulary, 16), ["a", "b"], dropout=0.1)
        save_huggingface(build_classifier(build_encoder(config), config, 2), folder)
        files.append({path.name: path.read_bytes() for path in folder.iterdir()})
    repository = client.hub.add(NAME, files[0])
    first, second = repository.revisions["main"], repository.commit(files[1])
    repository.revisions["main"] = first
    repository.revisions["other"] = first
    return [first, second]


def move(client: HubClient, commit: str) -> None:
    client.hub.repositories["model", NAME].revisions["main"] = commit


def begun_with(run: Path) -> str:
    return str(yaml.safe_load((run / "config.yaml").read_text())["init_checkpoint"])


def test_resumed_run_keeps_its_commit(client: HubClient, commits: list[str]) -> None:
    done = client.program("train", *OPTIONS, "--out", "run", "--max-updates", 1)
    assert done.returncode == 0, done.stderr
    run = client.folder / "run"
    assert begun_with(run) == f"hf://{NAME}@{commits[0]}"
    assert commits[0] in done.stderr
    assert f"base_model: {NAME}\n" in (run / "model-card.md").read_text()
    move(client, commits[1])
    for number, name in ((2, NAME), (3, f"{NAME}@{commits[0]}")):
        options = ("--resume", "run", "--init-checkpoint", name, "--max-updates", number)
        done = client.program("train", *options)
        assert done.returncode == 0, done.stderr
        assert client.hub.requests == []
    assert json.loads((run / "summary.json").read_text())["updates"] == 2
    assert begun_with(run) == f"hf://{NAME}@{commits[0]}"
    for revision in ("other", commits[1]):
        name = f"{NAME}@{revision}"
        done = client.program("train", "--resume", "run", "--init-checkpoint", name)
        assert done.returncode == 2
        assert re.search("--resume run cannot change --init-checkpoint to owner/my-b", done.stderr)
    elsewhere = {"HF_HOME": str(client.folder / "empty"), "HF_HUB_OFFLINE": "1"}
    done = client.program("train", "--resume", "run", **elsewhere)
    assert done.returncode == 2
    assert "copy the folder HF_HOME from the machine where the run began" in done.stderr


def test_all_seeds_begin_with_one_commit(client: HubClient, commits: list[str]) -> None:
    for seeds in (1, 2):
        options = ("--out", "runs", "--seeds", seeds, "--max-updates", 0)
        done = client.program("train", *OPTIONS, *options)
        assert done.returncode == 0, done.stderr
        assert begun_with(client.folder / f"runs/seed-{seeds - 1}").endswith(commits[0])
        move(client, commits[1])


def test_all_cells_of_a_sweep_begin_with_one_commit(client: HubClient, commits: list[str]) -> None:
    names = [name[2:].replace("-", "_") for name in OPTIONS[::2]]
    values = dict(zip(names, OPTIONS[1::2], strict=True))
    options = json.dumps({**values, "out": "sweep", "max_updates": 0})
    assert client.run(HALF_A_SWEEP, options).returncode == 3
    move(client, commits[1])
    runs = list((client.folder / "sweep").glob("*/seed-0"))
    assert len(runs) == 1
    done = client.run(HALF_A_SWEEP.replace("os._exit(3)", "pass"), options)
    assert done.returncode == 0, done.stderr
    runs = list((client.folder / "sweep").glob("*/seed-0"))
    assert {begun_with(run) for run in runs} == {f"hf://{NAME}@{commits[0]}"}
    assert len(runs) == 2


@pytest.mark.slow
def test_workers_begin_with_the_commit_of_the_first_one(
    client: HubClient, commits: list[str]
) -> None:
    # The branch moves between the questions of the two workers.
    client.hub.repositories["model", NAME].moves = commits[1:]
    options = (*OPTIONS, "--out", "run", "--max-updates", 0)
    done = client.program("launch", "--workers", 2, "--", "train", *options)
    assert done.returncode == 0, done.stderr
    asked = [path for _, path, _ in client.hub.requests if path == f"/api/models/{NAME}"]
    assert len(asked) == 2
    assert begun_with(client.folder / "run")[-40:] in commits
