"""Compares test scores with and without further pretraining on the texts of the task.

    python benchmarks/further_pretraining.py worth --shared ../shared    # 1 hour on 2 cores
    python benchmarks/further_pretraining.py corpus --shared ../shared   # 10 minutes

`worth`: a BERT-Tiny that was pretrained on reviews reads the training texts of IMDB, or of NCBI
disease, with `bertaccum pretrain`. Then the old and the new encoder are fine-tuned on as many rows
of these data as the table says, with three seeds. Only the last evaluation counts. Finished runs
are kept in the output folder. `corpus` tokenizes generated text of 1 and 4 GiB, and reports the
time and the peak of the memory that is not a mapped file. Each part writes
further_pretraining-<part>.json and prints a Markdown table.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from task_data import NCBI, DataSet, some_imdb
from task_trainings import bertaccum, evaluated
from tools import Results, run_part, spread, table

from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.tokenizer_files import read_vocabulary
from bertaccum.bert.vocabulary import Vocabulary
from bertaccum.data.corpus_store import open_corpus
from bertaccum.system.progress import silent
from data_prep.tables.corpus import find_corpus

SEEDS = (1, 2, 3)
RELEASED, FURTHER = "released encoder", "pretrained further"
# The rate suits BERT-Tiny, as that of `bertaccum train` does; NCBI disease has few texts.
PRETRAINING = ["--learning-rate", "5e-4", "--eval-every", "1000000"]


@dataclass(frozen=True)
class Case:
    """Data to fine-tune on.

    Args:
      texts: The data whose training texts are read before.
      reading: Number of epochs of pretraining.
      metric: Name of the test score.
    """

    data: DataSet
    epochs: int
    texts: DataSet
    reading: int
    metric: str = "accuracy"


def imdb(rows: int) -> DataSet:
    """Return IMDB with a number of rows, of which a tenth are held out."""
    return DataSet(f"IMDB, {rows * 9 // 10:,} rows", partial(some_imdb, rows))


ALL = imdb(25_000)
CASES = [
    Case(NCBI, 4, NCBI, 20, "entity_f1"),
    Case(imdb(556), 10, ALL, 1),
    Case(imdb(2_223), 4, ALL, 1),
    Case(ALL, 2, ALL, 1),
]


def trained(run: Path, *told: object) -> Path:
    """Train, unless the run exists, and return the run."""
    if not (run / "summary.json").exists():
        bertaccum(*map(str, told), "--out", str(run))
    return run


def worth(shared: Path, out: Path) -> tuple[Results, str]:
    """Fine-tune both encoders on each data set."""
    results, rows = [], []
    released = shared / "pretrained/bert_tiny_reviews"
    for case in CASES:
        texts = case.texts.prepared(shared, out)
        told = ["pretrain", "--text", texts, "--init-checkpoint", released, *PRETRAINING]
        read = trained(texts.parent / "read", *told, "--epochs", case.reading)
        data = case.data.prepared(shared, out)
        scores = {
            name: [score(case, data, start, seed) for seed in SEEDS]
            for name, start in ((RELEASED, released), (FURTHER, read))
        }
        results.append({"case": case.data.name, "metric": case.metric, **scores})
        rows.append([case.data.name, case.metric, *map(spread, scores.values())])
    return results, table(["data", "metric", RELEASED, FURTHER], rows)


def score(case: Case, data: Path, start: Path, seed: int) -> float:
    """Fine-tune an encoder, and return the score on test.tsv."""
    told = ["--data", data, "--init-checkpoint", start, "--epochs", case.epochs, "--seed", seed]
    run = data.parent / f"{start.name}-{seed}"
    return evaluated(trained(run, "train", *told, "--eval-every", 1_000_000))[case.metric]


def corpus(shared: Path, out: Path) -> tuple[Results, str]:
    """Tokenize generated text."""
    entries = read_vocabulary(shared / "pretrained/bert_tiny_reviews/vocab.txt")
    tokenization, results = Tokenization(Vocabulary(entries), 128), []
    for size in (2**30, 2**32):
        path = out / "corpus.txt"
        write_text(path, [word for word in entries if word.isalpha()], size)
        peak, watched = [0], threading.Event()
        watch = threading.Thread(target=keep_peak, args=(peak, watched))
        watch.start()
        began = time.monotonic(), time.process_time()
        train, _ = open_corpus(find_corpus([path]), tokenization, silent)
        seconds = time.monotonic() - began[0], time.process_time() - began[1]
        watched.set()
        watch.join()
        path.unlink()
        own = {"sequences": len(train), "seconds": seconds[0], "CPU seconds": seconds[1]}
        results.append({"bytes": size, **own, "peak MiB": peak[0] >> 10})
    rows = [[f"{r['bytes'] >> 30} GiB", *(f"{v:,.0f}" for v in [*r.values()][1:])] for r in results]
    return results, table(["text", *[*results[0]][1:]], rows)


def write_text(path: Path, words: list[str], size: int) -> None:
    """Write documents of up to 400 words, whose frequencies follow Zipf's law, one per line."""
    rng, shares = np.random.default_rng(0), 1 / np.arange(1, len(words) + 1)
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            chosen = rng.choice(words, 200_000, p=shares / shares.sum())
            cuts = np.cumsum(rng.integers(20, 400, 1000))
            file.writelines(" ".join(part) + "\n" for part in np.split(chosen, cuts) if len(part))


def keep_peak(peak: list[int], stopped: threading.Event) -> None:
    """Keep the peak of this process's memory that is not a mapped file, in KiB."""
    while not stopped.wait(0.2):
        status = Path("/proc/self/status").read_text()
        peak[0] = max(peak[0], int(status.split("RssAnon:")[1].split()[0]))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    run_part(__doc__.splitlines()[0], "further_pretraining", {"worth": worth, "corpus": corpus})
