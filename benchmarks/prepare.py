"""Measures time and peak memory of `bertaccum prepare` on a data set of the size of Yelp Polarity.

    python benchmarks/prepare.py --json prepare.json

The 560,000 + 38,000 texts have lengths as in Yelp and arrive one by one, as they do from
tensorflow-datasets, which is imported so that the peak includes it. The texts are made from the
shared Yelp rows or, if these are missing, from the synthetic sample.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import random
import resource
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from bertaccum.options.prepare import PrepareConfig
from data_prep import preparation
from data_prep.preparation import prepare
from data_prep.sources.sample import sample_source
from data_prep.tables.rows import Part, Row, Source

ROOT = Path(__file__).resolve().parents[1]
TRAIN_ROWS, TEST_ROWS = 560_000, 38_000
MEAN_CHARACTERS = 720
TARGET_SECONDS, TARGET_PEAK_MIB = 60, 2048


def main() -> None:
    """Measure once, print a table, and with --json also write the numbers to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file to write the numbers to")
    options = parser.parse_args()
    result = measure()
    for name, value in result.items():
        print(f"{name:22} {value}")
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def measure() -> dict[str, object]:
    """Run `prepare` on generated rows in this process, and return the measurements."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow_datasets as tfds

    tfds.as_numpy([])  # This also imports TensorFlow.
    texts, origin = seed_texts()
    before = peak_mib()
    with tempfile.TemporaryDirectory() as folder:
        config = PrepareConfig(source="yelp", out=f"{folder}/out")
        read_options, _ = preparation._SOURCES["yelp"]
        made = read_options, lambda *_: synthesised(texts)
        with mock.patch.dict(preparation._SOURCES, yelp=made):
            start = time.perf_counter()
            manifest = prepare(config, lambda *_: None, lambda _: []).manifest
            seconds = time.perf_counter() - start
        size = sum(path.stat().st_size for path in (Path(folder) / "out").glob("*.tsv"))
    return {
        "texts": origin,
        "train, dev, test rows": [counts["rows"] for counts in manifest["counts"].values()],
        "mean text bytes": round(size / (TRAIN_ROWS + TEST_ROWS)),
        "seconds": round(seconds, 1),
        "rows a second": round((TRAIN_ROWS + TEST_ROWS) / seconds),
        "MiB before": before,
        "peak MiB": peak_mib(),
        "targets": f"{TARGET_SECONDS} s, {TARGET_PEAK_MIB} MiB",
        "cores": os.cpu_count(),
    }


def peak_mib() -> int:
    """Return the peak resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def seed_texts() -> tuple[list[str], str]:
    """Return a few thousand reviews to resample, and a description of them."""
    shared = Path(os.environ.get("BERTACCUM_SHARED", ROOT.parent / "shared"))
    archive = shared / "data/yelp/yelp_review_polarity_csv.tgz"
    if not archive.is_file():
        return [text for _, _, text in sample_source(0).train.examples], "synthetic sample"
    with tarfile.open(archive) as tar:
        file = tar.extractfile("yelp_review_polarity_csv/train.csv")
        assert file is not None
        return [text for _, text in csv.reader(io.TextIOWrapper(file, "utf-8"))], "Yelp, resampled"


@contextmanager
def synthesised(texts: list[str]) -> Iterator[Source]:
    """Yield a source of the size of Yelp Polarity."""
    yield Source(
        description="synthesised for a benchmark",
        train=Part("benchmark train", examples(texts, TRAIN_ROWS, seed=0), TRAIN_ROWS),
        given={"test": Part("benchmark test", examples(texts, TEST_ROWS, seed=1), TEST_ROWS)},
    )


def examples(texts: list[str], rows: int, seed: int) -> Iterator[Row]:
    """Yield different rows whose mean length is that of Yelp's reviews."""
    rng = random.Random(seed)
    joined = MEAN_CHARACTERS * len(texts) / sum(map(len, texts))  # Mean number of texts per row.
    for row in range(1, rows + 1):
        count = int(joined) + (rng.random() < joined % 1)
        text = "\n".join(rng.choice(texts) for _ in range(max(count, 1)))
        yield Row(row, "12"[row % 2], f"{text} {row}")


if __name__ == "__main__":
    main()
