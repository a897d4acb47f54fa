"""Measures which learning rate suits models of several sizes.

    python benchmarks/learning_rates.py rates --shared ../shared     # 60 minutes on 2 cores

`rates` trains each model on real data sets of at most 3,200 rows, with each rate of a grid and the
other options at their defaults. The score is that of dev.tsv at the end. Repeated calls read
finished runs from files.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tf_keras
from task_data import DataSet, Rows, drawn, entailment, some_imdb, yelp
from tools import Results, run_part, table, vocabulary_file

import bertaccum

RATES = (2e-5, 5e-5, 1e-4, 3e-4, 1e-3)
SEEDS = (1,)
ROWS = 3200


def first(read: Callable[[Path], tuple[Rows, Rows]], shared: Path) -> tuple[Rows, Rows]:
    """Return a random part of a data set's rows."""
    train, test = (drawn(rows, ROWS * 5 // 4) for rows in read(shared))
    return train, test


def cola(shared: Path) -> tuple[Rows, Rows]:
    """Return the sentences of CoLA."""

    def rows(name: str) -> Rows:
        with (shared / "data/cola" / name).open(encoding="utf-8", newline="") as file:
            lines = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            return [{"label": line[1], "text": line[3]} for line in lines]

    return rows("in_domain_train.tsv"), rows("in_domain_dev.tsv")


DATA = tuple(
    DataSet(f"{name}, {ROWS} rows", partial(first, read), dev_fraction=0.2, length=length)
    for name, read, length in (
        ("Yelp", yelp, 128),
        ("IMDB", partial(some_imdb, 25_000), 128),
        ("SICK", entailment, 64),
        ("CoLA", cola, 32),
    )
)


@dataclass(frozen=True)
class Model:
    """A model and its initial weights.

    Args:
      options: Fields of `TrainConfig`.
      data: The data sets that it is trained on.
    """

    name: str
    options: dict[str, Any]
    data: Sequence[DataSet] = DATA


def models(shared: Path) -> list[Model]:
    pretrained = {"init_checkpoint": str(shared / "pretrained/bert_tiny_reviews")}
    new = {"init_checkpoint": "none", "vocab": str(vocabulary_file(shared))}
    random = [
        Model(f"{name}, random", new | {"model": name}, (DATA[0], DATA[2]))
        for name in ("bert-tiny", "bert-mini", "bert-small")
    ]
    return [Model("bert-tiny, pretrained", pretrained), *random]


def score(
    model: Model, data: DataSet, shared: Path, out: Path, seed: int, rate: float
) -> dict[str, float]:
    """Train a model, and return its last dev accuracy and the majority's; read it if known."""
    saved = out / "scores" / f"{model.name}, {data.name}, {rate:g}, seed {seed}.json"
    if saved.exists():
        known: dict[str, float] = json.loads(saved.read_text())
        return known
    folder, last = out / "run", {}
    shutil.rmtree(folder, ignore_errors=True)
    for event in bertaccum.training_events(
        data=str(data.prepared(shared, out)),
        out=str(folder),
        max_seq_length=data.length,
        micro_batch=32,
        seed=seed,
        eval_every=1.0,
        save_every="2h",
        learning_rate=rate,
        **model.options,
    ):
        if isinstance(event, bertaccum.Evaluated):
            last = {"accuracy": event.accuracy, "majority": event.majority_accuracy}
    tf_keras.backend.clear_session()
    saved.parent.mkdir(exist_ok=True)
    saved.write_text(json.dumps(last))
    return last


def rates(shared: Path, out: Path) -> tuple[Results, str]:
    """Return the mean accuracies for each learning rate."""
    results: Results = []
    for model in models(shared):
        for data in model.data:
            found: dict[float, float] = {}
            for rate in RATES:
                runs = [score(model, data, shared, out, seed, rate) for seed in SEEDS]
                found[rate] = statistics.mean(run["accuracy"] for run in runs)
            results.append(
                {"model": model.name, "data": data.name, "majority": runs[0]["majority"]}
                | {f"{rate:g}": accuracy for rate, accuracy in found.items()}
            )
            print(results[-1], flush=True)
    heads = ["model", "data", "majority", *(f"{rate:g}" for rate in RATES)]
    rows = [[r if isinstance(r, str) else f"{r:.3f}" for r in row.values()] for row in results]
    return results, table(heads, rows)


if __name__ == "__main__":
    run_part(__doc__ or "", "learning_rates", {"rates": rates})
