"""Prepares the real data sets of `tasks.py` with the command line."""

from __future__ import annotations

import csv
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

Rows = list[dict[str, str]]
POSITIVE = "2"
# Fraction of the positive reviews in the imbalanced data set.
RARE = 0.05


@dataclass(frozen=True)
class DataSet:
    """A real data set.

    Args:
      name: Name of the folder to write.
      read: Maps the folder of shared data to the rows for training and for testing. Rows of the
        original dev set are among those for training, and `dev_fraction` holds out as many.
      task: Value of `--task`.
      dev_fraction: Fraction of the rows for training to hold out as dev.tsv.
      length: Maximum number of tokens per example.
      folder: Folder of shared data with the files train, dev and test, in place of `read`.
    """

    name: str
    read: Callable[[Path], tuple[Rows, Rows]]
    task: str = "classification"
    dev_fraction: float = 0.1
    length: int = 128

    folder: str | None = None

    def prepared(self, shared: Path, out: Path) -> Path:
        """Prepare the data with the command line, unless this is done, and return their folder."""
        raw, data = out / self.name / "raw", out / self.name / "data"
        if data.is_dir():
            return data
        if self.folder is not None:
            told = ["--train-file", shared / self.folder, "--no-drop-duplicates"]
            self._prepare([*told, "--out", data])
            return data
        raw.mkdir(parents=True, exist_ok=True)
        files = raw / "train.csv", raw / "test.csv"
        for path, rows in zip(files, self.read(shared), strict=True):
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(rows[0]), quoting=csv.QUOTE_ALL)
                writer.writeheader()
                writer.writerows(rows)
        options = ["--train-file", files[0], "--test-file", files[1], "--out", data]
        # Keep the published rows, although some texts occur in both files.
        self._prepare([*options, "--dev-fraction", self.dev_fraction, "--no-drop-duplicates"])
        return data

    def _prepare(self, options: list[Any]) -> None:
        command = [sys.executable, "-m", "bertaccum", "prepare", "--source", "csv"]
        command += ["--task", self.task, *map(str, options)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def sick(column: str, shared: Path) -> tuple[Rows, Rows]:
    """Return the sentence pairs of SICK, with the labels of a column."""

    def rows(name: str) -> Rows:
        with (shared / "data/sick" / name).open(encoding="utf-8", newline="") as file:
            lines = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            return [
                {"label": row[column], "text": row["sentence_A"], "text_pair": row["sentence_B"]}
                for row in lines
            ]

    return rows("SICK_train.txt") + rows("SICK_trial.txt"), rows("SICK_test_annotated.txt")


def go_emotions(shared: Path) -> tuple[Rows, Rows]:
    """Return the first comments of each file of GoEmotions, with the names of their labels."""
    folder = shared / "data/goemotions"
    names = (folder / "labels.txt").read_text(encoding="utf-8").split()

    def rows(name: str, count: int) -> Rows:
        lines = (folder / name).read_text(encoding="utf-8").split("\n")[:count]
        cells = [line.split("\t") for line in lines]
        return [
            {"label": "|".join(names[int(n)] for n in numbers.split(",")), "text": text}
            for text, numbers, _ in cells
        ]

    return rows("train.tsv", 8000) + rows("dev.tsv", 2000), rows("test.tsv", 2000)


def reviews(archive: str, shared: Path) -> tuple[Rows, Rows]:
    """Return all reviews of an archive in the layout of Yelp Polarity."""

    def rows(files: tarfile.TarFile, name: str) -> Rows:
        member = next(m for m in files.getmembers() if m.name.endswith(name))
        source = files.extractfile(member)
        assert source is not None
        lines = csv.reader(source.read().decode().splitlines(keepends=True))
        return [{"label": label, "text": text.replace("\\n", "\n")} for label, text in lines]

    with tarfile.open(shared / "data" / archive) as files:
        return rows(files, "train.csv"), rows(files, "test.csv")


def few_positives(shared: Path) -> tuple[Rows, Rows]:
    """Return the Yelp reviews without most of the positive ones, so that `RARE` are positive."""
    train, test = yelp(shared)
    return thinned(train), thinned(test)


def thinned(rows: Rows) -> Rows:
    positive = [i for i, row in enumerate(rows) if row["label"] == POSITIVE]
    kept = round((len(rows) - len(positive)) * RARE / (1 - RARE))
    dropped = set(positive[kept:])
    return [row for i, row in enumerate(rows) if i not in dropped]


def drawn(rows: Rows, count: int) -> Rows:
    """Return `count` rows in random order."""
    order = np.argsort(np.random.Philox(key=0).random_raw(len(rows)), kind="stable")
    return [rows[i] for i in order[:count]]


def some_imdb(count: int, shared: Path) -> tuple[Rows, Rows]:
    """Return `count` and 5,000 IMDB reviews in random order; the archive is sorted by class."""
    train, test = reviews("imdb/imdb_polarity_csv.tgz", shared)
    return drawn(train, count), drawn(test, 5000)


yelp = partial(reviews, "yelp/yelp_review_polarity_csv.tgz")
entailment, relatedness = (partial(sick, c) for c in ("entailment_judgment", "relatedness_score"))

NO_ROWS: Callable[[Path], tuple[Rows, Rows]] = lambda shared: ([], [])  # noqa: E731
WNUT, NCBI = (
    DataSet(name, NO_ROWS, "token-classification", folder=f"data/ner/{folder}")
    for name, folder in (("WNUT-17", "wnut17"), ("NCBI disease", "ncbi_disease"))
)
SICK = DataSet("SICK entailment", entailment, length=64)
RELATEDNESS = DataSet("SICK relatedness", relatedness, "regression", length=64)
EMOTIONS = DataSet("GoEmotions", go_emotions, "multi-label", dev_fraction=0.2, length=64)
# Small sets hold out more, because a temperature is fitted on dev.tsv.
FEW_POSITIVES = DataSet("Yelp, 5 % positive", few_positives, dev_fraction=0.2)
YELP = DataSet("Yelp", yelp)
IMDB = DataSet("IMDB, 2,000 rows", partial(some_imdb, 2000), dev_fraction=0.2)
LONG_IMDB = {
    length: DataSet(f"IMDB, {length} tokens", partial(some_imdb, 5000), length=length)
    for length in (128, 256)
}
