"""Run folders with the files that training writes, without training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

VERSIONS = {"bertaccum": "0.1.0", "tensorflow": "2.20.0", "tf_keras": "2.20.1"}


def write_run(
    folder: Path,
    losses: Sequence[float | None],
    *,
    batch: int = 4,
    accuracies: Mapping[int, float] | None = None,
    scores: Sequence[dict[str, Any]] = (),
    finished: bool = True,
    plan: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """Write the folder of a run and return its path.

    Args:
      folder: The folder to create.
      losses: The loss of each update; None if it was not finite.
      batch: The number of examples in each update.
      accuracies: The dev accuracy of each evaluation, by update.
      scores: Complete lines of `eval.jsonl`, added after those of `accuracies`.
      finished: Whether the run has a summary.
      plan: Values of `plan.json` that differ from the default plan.
      config: Options that differ from those of the default run.
    """
    folder.mkdir(parents=True)
    options = {"data": "/home/someone/data/reviews", "model": "bert-tiny", "target_batch": batch}
    (folder / "config.yaml").write_text(yaml.safe_dump({"learning_rate": 2e-5} | options | config))
    lines = [
        {
            "kind": "updated",
            "update": number,
            "epoch": 1,
            "loss": loss,
            "examples": batch,
            "learning_rate": 1e-3 / number,
            "seconds": 0.5,
            "peak_memory_bytes": (10 + number) * 2**20,
        }
        for number, loss in enumerate(losses, 1)
    ]
    write_lines(folder / "metrics.jsonl", lines)
    best = max((accuracies or {}).values(), default=None)
    evaluations = [
        {"update": update, "accuracy": score, "loss": 0.5, "best": score == best}
        for update, score in (accuracies or {}).items()
    ]
    lines = [{"kind": "evaluated"} | line for line in (*evaluations, *scores)]
    write_lines(folder / "eval.jsonl", lines)
    cut = {"target_batch": batch, "micro_batch": 2, "accumulation_steps": batch // 2, "replicas": 1}
    write_json(folder / "plan.json", cut | {"why": None} | (plan or {}))
    digests = {name: name[0] * 64 for name in ("train.tsv", "dev.tsv", "vocabulary")}
    inputs = {"labels": ["0", "1"], "mark": "m", "rows": {"train.tsv": 1200, "dev.tsv": 34}}
    lengths = {"max_seq_length": 8, "texts": 16, "longer": 6, "median": 8, "longest": 10}
    write_json(folder / "inputs.json", digests | inputs | {"truncation": {"train.tsv": lengths}})
    if finished:
        summary = {"model": "bert-tiny", "total_seconds": 12.5, "peak_memory_bytes": 99 * 2**20}
        summary["examples_per_second"] = 32.0
        write_json(folder / "summary.json", summary | {"versions": VERSIONS})
    return folder


def write_lines(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values))
