"""Compares test accuracy after training from a checkpoint and from random weights, over seeds.

    python benchmarks/pretraining.py --shared ../shared --out build/pretraining   # 25 minutes

Runs the command line on real reviews from the folder of shared data. Writes pretraining.json and
the training curves (pretraining.png), and prints a Markdown table.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Evaluate only at the end: a dev.tsv of 47 rows is too small to select the best epoch.
RECIPE = ["--target-batch", "32", "--micro-batch", "8", "--learning-rate", "3e-4"]
RECIPE += ["--eval-every", "1000000"]
STARTS = {"checkpoint": "pretrained/bert_tiny_reviews", "from scratch": "none"}


@dataclass(frozen=True)
class Task:
    """A set of real reviews, and the number of epochs to train on it."""

    name: str
    archive: str
    epochs: int
    rows: int | None = None
    shuffled: bool = False


TASKS = [
    Task("Yelp, 4,684 rows", "yelp/yelp_review_polarity_csv.tgz", 3),
    Task("Yelp, first 990 rows", "yelp/yelp_review_polarity_csv.tgz", 4, rows=990),
    Task("IMDB, 2,000 rows", "imdb/imdb_polarity_csv.tgz", 3, rows=2000, shuffled=True),
]


def bertaccum(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "bertaccum", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def extract(task: Task, shared: Path, folder: Path) -> None:
    """Write the task's train.csv and test.csv, without a header, into `folder`."""
    folder.mkdir(parents=True)
    with tarfile.open(shared / "data" / task.archive) as archive:
        for name in ("train.csv", "test.csv"):
            member = next(m for m in archive.getmembers() if m.name.endswith(name))
            source = archive.extractfile(member)
            assert source is not None
            rows = list(csv.reader(source.read().decode().splitlines(keepends=True)))
            if name == "train.csv" and task.rows:
                draw = np.random.Philox(key=0).random_raw(len(rows))
                order = np.argsort(draw, kind="stable") if task.shuffled else range(len(rows))
                rows = [rows[i] for i in order[: task.rows]]
            with (folder / name).open("w", newline="", encoding="utf-8") as target:
                csv.writer(target, quoting=csv.QUOTE_ALL).writerows(rows)


def measure(task: Task, shared: Path, out: Path, seeds: int) -> list[dict[str, object]]:
    raw, data = out / task.name / "raw", out / task.name / "data"
    extract(task, shared, raw)
    bertaccum(
        *("prepare", "--source", "csv", "--out", data, "--label-column", 1, "--text-column", 2),
        *("--train-file", raw / "train.csv", "--test-file", raw / "test.csv"),
        *("--dev-fraction", 0.01),
    )
    results = []
    for start, checkpoint in STARTS.items():
        source = "none" if checkpoint == "none" else shared / checkpoint
        for seed in range(seeds):
            run = out / task.name / f"{start}-{seed}"
            bertaccum(
                *("train", "--data", data, "--out", run, "--seed", seed, "--epochs", task.epochs),
                *("--init-checkpoint", source, "--model", "bert-tiny", *RECIPE),
                *("--vocab", shared / "data/vocab/vocab.txt"),
            )
            bertaccum("eval", "--run", run)
            accuracy = json.loads((run / "eval-test.json").read_text())["accuracy"]
            results.append({"task": task.name, "start": start, "seed": seed, "accuracy": accuracy})
            print(f"{task.name}, {start}, seed {seed}: {accuracy:.4f}", file=sys.stderr)
    return results


def table(results: list[dict[str, object]]) -> str:
    lines = ["| data | checkpoint | from scratch |", "|---|---|---|"]
    for task in TASKS:
        cells = []
        for start in STARTS:
            scores = [
                float(str(r["accuracy"]))
                for r in results
                if (r["task"], r["start"]) == (task.name, start)
            ]
            spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
            cells.append(f"{statistics.mean(scores):.3f} ± {spread:.3f}")
        lines.append(f"| {task.name}, {task.epochs} epochs | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw_curves(out: Path, seeds: int) -> None:
    """Draw one panel per task with the training loss of every run, smoothed over 25 updates."""
    figure, axes = plt.subplots(1, len(TASKS), figsize=(13, 3.6), layout="constrained")
    for axis, task in zip(axes, TASKS, strict=True):
        for colour, start in zip(("tab:blue", "tab:orange"), STARTS, strict=True):
            for seed in range(seeds):
                lines = (out / task.name / f"{start}-{seed}" / "metrics.jsonl").read_text()
                losses = [json.loads(line)["loss"] for line in lines.splitlines()]
                smooth = np.convolve(losses, np.ones(25) / 25, "valid")
                axis.plot(
                    np.arange(len(smooth)) + 25,
                    smooth,
                    color=colour,
                    alpha=0.8,
                    label=start if seed == 0 else None,
                )
        axis.set(title=f"{task.name}, {task.epochs} epochs", xlabel="update")
    axes[0].set_ylabel("training loss (mean of 25 updates)")
    axes[0].legend()
    figure.savefig(out / "pretraining.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("build/pretraining"))
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    results = []
    for task in TASKS:
        results += measure(task, arguments.shared.resolve(), arguments.out, arguments.seeds)
    (arguments.out / "pretraining.json").write_text(json.dumps(results, indent=2) + "\n")
    draw_curves(arguments.out, arguments.seeds)
    print(table(results))


if __name__ == "__main__":
    main()
