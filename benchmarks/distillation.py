"""Compares small models that learn with and without a teacher, and the sizes of models.

    python benchmarks/distillation.py taught --shared ../shared   # 45 minutes on 2 cores
    python benchmarks/distillation.py sizes --shared ../shared    # 5 minutes after `taught`

`taught`: the teacher is a BERT-Small with random weights, trained on all rows of the data. The
students are a BERT-Tiny that was pretrained on reviews, and a DistilBERT with two layers of 256
units and random weights. Each is trained with three seeds on the rows in the table: with the labels
alone, with the labels and the teacher, and with the other rows of IMDB as unlabeled texts besides.
Only the last evaluation counts. `sizes` measures these models and their int8 versions with
`bertaccum eval --latency`, and draws them with `bertaccum compare`. Finished runs are kept in the
output folder. Each part writes distillation-<part>.json and prints a Markdown table.
"""

from __future__ import annotations

import csv
import os
import statistics
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from task_data import SICK, DataSet, some_imdb
from task_trainings import bertaccum, evaluated
from tools import Results, run_part, spread, table

from bertaccum import api
from bertaccum.bert.encoder_config import DISTILBERT, EncoderConfig, write_bert_config
from bertaccum.data.tokenizing import open_store
from bertaccum.data.windows import by_length
from bertaccum.inference.predictor import Predictor
from bertaccum.inference.trained_model import load_trained
from bertaccum.options.commands import CompareConfig
from bertaccum.reporting.run_summaries import compare
from bertaccum.system.progress import silent

SEEDS = (1, 2, 3)
ROWS, LABELED = 5_000, 556
ALONE, TAUGHT, MORE = "labels", "labels and teacher", "labels, teacher and unlabeled texts"
TINY, DISTIL = "BERT-Tiny, pretrained", "DistilBERT, 2 layers"


@dataclass(frozen=True)
class Case:
    """Data to learn from.

    Args:
      of_teacher: Data of the teacher, which it reads `reading` times.
      data: Data of the students, which they read `epochs` times.
      with_unlabeled: How often students read them together with the rows that only the teacher has,
        as unlabeled texts; 0 if they do not.
    """

    of_teacher: DataSet
    reading: int
    data: DataSet
    epochs: int
    with_unlabeled: int = 0


def imdb(rows: int) -> DataSet:
    """Return IMDB with a number of rows, of which a tenth are held out."""
    return DataSet(f"IMDB, {rows * 9 // 10:,} rows", partial(some_imdb, rows))


CASES = [Case(SICK, 10, SICK, 4), Case(imdb(ROWS), 3, imdb(LABELED), 10, with_unlabeled=2)]


def trained(run: Path, *told: object) -> Path:
    """Train, unless the run exists, and return the run."""
    if not (run / "summary.json").exists():
        bertaccum("train", *map(str, told), "--out", str(run))
    return run


def teacher(case: Case, shared: Path, out: Path) -> Path:
    """Return the run of the teacher."""
    data = case.of_teacher.prepared(shared, out)
    words = shared / "pretrained/bert_tiny_reviews/vocab.txt"
    told = ["--data", data, "--epochs", case.reading, "--max-seq-length", case.of_teacher.length]
    told += ["--model", "bert-small", "--init-checkpoint", "none", "--vocab", words]
    told += ["--precision", "mixed_bfloat16", "--micro-batch", 8]
    return trained(data.parent / "teacher", *told)


def students(shared: Path, out: Path) -> dict[str, list[object]]:
    """Return the options that select the models of the students."""
    pretrained, config = shared / "pretrained/bert_tiny_reviews", out / "distilbert.json"
    encoder = EncoderConfig(
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=1024,
        type_vocab_size=0,
        hidden_act="gelu_erf",
        model_type=DISTILBERT,
    )
    write_bert_config(config, encoder)
    random = ["--init-checkpoint", "none", "--vocab", pretrained / "vocab.txt"]
    return {TINY: ["--init-checkpoint", pretrained], DISTIL: ["--bert-config", config, *random]}


def unlabeled(shared: Path, out: Path) -> Path:
    """Return a file with the reviews of the teacher that no student has."""
    path = out / "unlabeled.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows, _ = some_imdb(ROWS, shared)
        csv.writer(file).writerows([["text"], *([row["text"]] for row in rows[LABELED:])])
    return path


def student(case: Case, data: Path, options: list[object], name: str, seed: int) -> Path:
    """Return the run of a student."""
    epochs = case.with_unlabeled if "--unlabelled" in options else case.epochs
    told = ["--data", data, *options, "--epochs", epochs, "--seed", seed, "--micro-batch", 32]
    told += ["--max-seq-length", case.data.length, "--eval-every", 1_000_000]
    return trained(data.parent / f"{name} {seed}", *told)


def taught(shared: Path, out: Path) -> tuple[Results, str]:
    """Train all students, and return their test scores."""
    results, rows = [], []
    for case in CASES:
        run, data = teacher(case, shared, out), case.data.prepared(shared, out)
        ways: dict[str, list[object]] = {ALONE: [], TAUGHT: ["--teacher", run]}
        if case.with_unlabeled:
            ways[MORE] = ["--teacher", run, "--unlabelled", unlabeled(shared, out)]
        of_teacher = evaluated(run)["accuracy"]
        for name, options in students(shared, out).items():
            scores = {}
            for way, more in ways.items():
                told = [*options, *more]
                runs = [student(case, data, told, f"{name}, {way}", seed) for seed in SEEDS]
                scores[way] = [evaluated(one)["accuracy"] for one in runs]
            result = {"data": case.data.name, "student": name, "teacher": of_teacher}
            results.append(result | {"scores": scores})
            rows.append([case.data.name, name, f"{of_teacher:.4f}"])
            rows[-1] += [spread(scores[w]) if w in scores else "" for w in (ALONE, TAUGHT, MORE)]
    return results, table(["data", "student", "teacher", ALONE, TAUGHT, MORE], rows)


def sizes(shared: Path, out: Path) -> tuple[Results, str]:
    """Measure the teacher and students of the last case, and draw them."""
    case = CASES[-1]
    place = case.data.prepared(shared, out).parent
    names = [f"{n}, {way} {SEEDS[0]}" for n in students(shared, out) for way in (ALONE, MORE)]
    runs = [case.of_teacher.prepared(shared, out).parent / "teacher", *(place / n for n in names)]
    for run in runs:
        for quantize in ("none", "int8"):
            api.evaluate(run=str(run), latency=True, quantize=quantize)
    models = compare(CompareConfig(out=str(out)), runs)["models"]
    speeds = {run.name: texts_per_second(run, place / "data/test.tsv") for run in runs}
    rows = [
        [
            one["run"],
            one["evaluation"],
            f"{one['value']:.4f}",
            f"{one['model_bytes'] / 2**20:.1f} MiB",
            f"{one['milliseconds_per_text']:.1f} ms",
            "" if "int8" in one["evaluation"] else f"{speeds[one['run']]:,.0f}",
        ]
        for one in models
    ]
    heads = ["model", "evaluated on", "accuracy", "weights", "time for one text", "texts/s"]
    return models, table(heads, rows)


def texts_per_second(run: Path, tsv: Path) -> float:
    """Return the speed of predicting batches of 32 texts in any order."""
    trained = load_trained(run)
    store = open_store(tsv, trained.task, trained.tokenization, silent)
    predictor, seconds = Predictor(trained.model, 32), []
    for start in range(0, 20 * 32, 32):
        begin = time.perf_counter()
        predictor.predict(store, by_length(store, np.arange(start, start + 32)))
        seconds.append(time.perf_counter() - begin)
    return 32 / statistics.median(seconds[5:])


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    run_part(__doc__.splitlines()[0], "distillation", {"taught": taught, "sizes": sizes})
