"""Trainings of `tasks.py` with both programs, which are kept and not repeated."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from task_data import DataSet
from task_scores import FITTED, peer_scores
from task_weights import Weights, trained_weights, write_initial
from tools import say

from bertaccum.data.windows import permutation, updates_per_epoch
from data_prep.tables.tsv import read_tsv

HERE = Path(__file__).parent
PEER = HERE.parent / "build/peers/environments/huggingface/bin/python"
WINDOW, UPDATES, WARMUP = 32, 10, 0.1
# Suffix of our scores after `eval --calibrate`.
CALIBRATED = " (calibrated)"

Scores = dict[str, float]


@dataclass(frozen=True)
class Case:
    """A training that both programs run.

    Args:
      name: Name in the table.
      data: The data set.
      metrics: Names of the test scores in the table.
      epochs: Number of epochs.
      learning_rate: Peak learning rate.
      dropout: Rate of all dropout layers.
      weighted: Whether classes have balanced weights.
      seeds: Number of seeds to train with.
      options: More options of `bertaccum train`.
      lora_rank: Rank of low-rank adapters; None to train without.
    """

    name: str
    data: DataSet
    metrics: tuple[str, ...]
    epochs: int
    learning_rate: float = 3e-4
    dropout: float = 0.1
    weighted: bool = False
    seeds: int = 3
    options: tuple[str, ...] = ()
    lora_rank: int | None = None


class Place:
    """A case with its prepared data, the pretrained checkpoint and the folders of its trainings.

    Args:
      shared: Folder of shared data.
      out: Folder to write to.
      case: The case.
      checkpoint: The checkpoint to start from; None for BERT-Tiny, pretrained on reviews.
    """

    def __init__(self, shared: Path, out: Path, case: Case, checkpoint: Path | None = None) -> None:
        self.case, self.out = case, out
        self.data = case.data.prepared(shared, out)
        self.checkpoint = checkpoint or shared / "pretrained/bert_tiny_reviews"
        self.labels = read_tsv(self.data / "train.tsv")["label"].to_numpy()

    def run(self, name: str) -> Path:
        """Return a folder for a training of the case."""
        suffix = "-weighted" * self.case.weighted + "-no-dropout" * (not self.case.dropout)
        suffix += "".join(adapting(self.case)) + "".join(self.case.options)
        return self.out / self.case.data.name / f"{name}{suffix}"

    @property
    def names(self) -> list[str]:
        return json.loads((self.data / "manifest.json").read_text())["labels"]

    @property
    def outputs(self) -> int:
        return len(self.names) or 1

    @property
    def class_weight(self) -> list[float] | None:
        """The balanced weights, rows / (classes * rows of the class); None without weights."""
        if not self.case.weighted:
            return None
        counts = np.bincount(self.labels.astype(int))
        return (len(self.labels) / (len(counts) * counts)).tolist()


def kept(run: Path, told: Any, make: Callable[[], Scores]) -> Scores:
    """Return what `make` returned after a training with the same options, or call it.

    Args:
      run: Folder of the training, which is emptied before the call.
      told: Everything that determines the training, as JSON.
      make: Trains and returns scores.
    """
    path = run / "scores.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    if record.get("told") != told:
        shutil.rmtree(run, ignore_errors=True)
        begin = time.monotonic()
        record = {"told": told, "scores": make()}
        path.write_text(json.dumps(record, indent=2) + "\n")
        say(f"{run.parent.name}, {run.name}: {time.monotonic() - begin:.0f} s")
    return record["scores"]


def peer_job(place: Place, run: Path, seed: int) -> dict[str, Any]:
    """Return a job of `peers/hf_tasks.py` that trains as many epochs as the case has."""
    case = place.case
    updates = case.epochs * updates_per_epoch(len(place.labels), WINDOW)
    return {
        "data": str(place.data),
        "initial": str(run / "initial"),
        "orders": str(run / "orders.npy"),
        "out": str(run),
        "task": case.data.task,
        "outputs": place.outputs,
        "length": case.data.length,
        "dropout": case.dropout,
        "seed": seed,
        "learning_rate": case.learning_rate,
        "updates": updates,
        "warmup": round(WARMUP * updates),
        "steps": 1,
        "divide": False,
        "loss": "subclass" if case.weighted else "model",
        "class_weight": place.class_weight,
        "keras_epsilon": False,
        "lora_rank": case.lora_rank,
        "predict": ["dev", "test"],
    }


def train_peer(place: Place, run: Path, job: dict[str, Any]) -> None:
    """Train with Hugging Face Trainer, from our initial weights and in our order."""
    run.mkdir(parents=True)
    seed, epochs = job["seed"], range(place.case.epochs)
    data = place.case.data
    write_initial(run / "initial", place.checkpoint, seed, place.outputs, data.length, data.task)
    np.save(run / "orders.npy", [permutation(seed, epoch, len(place.labels)) for epoch in epochs])
    (run / "job.json").write_text(json.dumps(job, indent=2) + "\n")
    command = [str(PEER), str(HERE / "peers/hf_tasks.py"), str(run / "job.json")]
    with (run / "log.txt").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log)


def our_options(place: Place, run: Path, seed: int) -> list[str]:
    case = place.case
    told = ["--data", place.data, "--out", run, "--seed", seed, "--target-batch", WINDOW]
    told += ["--init-checkpoint", place.checkpoint, "--max-seq-length", case.data.length]
    told += ["--learning-rate", case.learning_rate, "--warmup-fraction", WARMUP]
    told += ["--class-weight", "balanced"] if case.weighted else []
    told += ["--dropout", case.dropout, *adapting(case), *case.options]
    # With a single evaluation, the best weights are the last ones, which Trainer keeps.
    return [str(option) for option in [*told, "--eval-every", 1_000_000]]


def adapting(case: Case) -> list[str]:
    return [] if case.lora_rank is None else ["--adapt", "lora", "--lora-rank", str(case.lora_rank)]


def bertaccum(*arguments: str) -> None:
    command = [sys.executable, "-m", "bertaccum", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def peer_result(place: Place, seed: int) -> Scores:
    """Return the test scores of Trainer."""
    run = place.run(f"trainer-{seed}")
    job = peer_job(place, run, seed)

    def make() -> Scores:
        train_peer(place, run, job)
        return peer_scores(place.case.data.task, run / "logits.npz", place.names)

    return kept(run, job, make)


def our_result(place: Place, seed: int) -> Scores:
    """Return the test scores of `bertaccum eval`, before and after fitting on dev.tsv."""
    run, task = place.run(f"bertaccum-{seed}"), place.case.data.task
    told = our_options(place, run, seed)
    told += ["--epochs", str(place.case.epochs), "--micro-batch", "8"]

    def make() -> Scores:
        bertaccum("train", *told)
        scores = evaluated(run)
        if task != "regression":
            scores |= evaluated(run, "--calibrate", suffix=CALIBRATED)
        if task == "multi-label":
            scores |= evaluated(run, "--thresholds", "dev", suffix=FITTED)
        return scores

    return kept(run, told, make)


def evaluated(run: Path, *options: str, suffix: str = "") -> Scores:
    """Return the numbers that `bertaccum eval` reports, under their names with a suffix."""
    bertaccum("eval", "--run", str(run), *options)
    report = json.loads((run / "eval-test.json").read_text())
    return {k + suffix: v for k, v in report.items() if isinstance(v, int | float)}


def few_of_peer(place: Place, run: Path, told: dict[str, Any]) -> Weights:
    """Return the weights after a few updates of Trainer.

    Args:
      place: The case.
      run: Folder of the training.
      told: Entries of the job that differ from those of `peer_job`.
    """
    short = {"updates": UPDATES, "warmup": round(WARMUP * UPDATES), "predict": []}
    job = peer_job(place, run, seed=0) | short | told

    def make() -> Scores:
        train_peer(place, run, job)
        return {}

    kept(run, job, make)
    return trained_weights(run)


def few_of_ours(place: Place, run: Path, micro_batch: int) -> Weights:
    """Return the weights after a few of our updates."""
    epochs = UPDATES / updates_per_epoch(len(place.labels), WINDOW)
    told = [*our_options(place, run, 0), "--epochs", str(epochs)]
    told += ["--micro-batch", str(micro_batch), "--cut", "count"]

    def make() -> Scores:
        bertaccum("train", *told)
        return {}

    kept(run, told, make)
    return trained_weights(run)
