"""Compares exported models with `bertaccum predict`: probabilities, accuracy, size and latency.

    python benchmarks/exports.py agreement   # 5 minutes on 2 cores
    python benchmarks/exports.py onnx        # 4 minutes; make build/peers/environments/huggingface

Both parts train BERT-Tiny from a pretrained checkpoint on real Yelp reviews for 290 updates, and
predict 2,000 reviews of the test set with the run and with its exports. Size and latency are those
of BERT-Small with random weights, for one text of 128 tokens, on all cores. `onnx` exports the
Hugging Face folder as ONNX and runs it with ONNX Runtime. Finished trainings and exports in the
output folder are kept. Each part writes exports-<part>.json and prints a Markdown table.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tools import Results, prepared_yelp, random_run, run_part, say, table, vocabulary_file

from bertaccum import api
from bertaccum.bert.tokenization import SEGMENT, Tokenization
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.bert.tokenizer_files import read_vocabulary
from bertaccum.bert.vocabulary import Vocabulary
from bertaccum.data.token_store import TokenStore
from bertaccum.data.tokenizing import store_of
from data_prep.tables.tsv import read_tsv

TEXTS, LENGTH, LATENCY_CALLS = 2000, 128, 50
INPUTS = ("token_ids", "segment_ids", "padding_mask")
# Function of the model's inputs, [batch, length] int32 each, that returns its outputs.
Served = Callable[..., dict[str, np.ndarray]]
PYTHON = Path(__file__).resolve().parents[1] / "build/peers/environments/huggingface/bin/python"


@dataclass(frozen=True)
class Reviews:
    """Reviews of the test set, with the predictions of a run.

    Args:
      run: The run folder.
      texts: The reviews.
      labels: Their class numbers.
      store: Their tokens.
    """

    run: Path
    texts: list[str]
    labels: np.ndarray
    store: TokenStore

    @cached_property
    def predicted(self) -> np.ndarray:
        """The probabilities of `bertaccum predict`, [texts, classes]."""
        found = api.predict(self.texts, run=str(self.run))
        return np.array([list((one.probabilities or {}).values()) for one in found])

    def row(self, name: str, probabilities: np.ndarray) -> dict[str, Any]:
        """Return how an export compares with the run."""
        return {
            "export": name,
            "texts": len(self.texts),
            "difference": float(abs(probabilities - self.predicted).max()),
            "mean_difference": float(abs(probabilities - self.predicted).mean()),
            "accuracy": float(np.mean(probabilities.argmax(1) == self.labels)),
            "same_labels": float(np.mean(probabilities.argmax(1) == self.predicted.argmax(1))),
        }


def trained_reviews(shared: Path, out: Path) -> Reviews:
    """Train BERT-Tiny on the reviews unless it has been trained, and return the test reviews."""
    data, run = prepared_yelp(shared, out), out / "run"
    if not (run / "best").exists():
        options = ["--data", data, "--out", run, "--max-seq-length", LENGTH]
        options += ["--init-checkpoint", shared / "pretrained/bert_tiny_reviews"]
        options += ["--epochs", 2, "--learning-rate", 3e-4]
        command = [sys.executable, "-m", "bertaccum", "train", *map(str, options)]
        subprocess.run(command, check=True)
    rows = read_tsv(data / "test.tsv")[:TEXTS]
    texts = list(rows["text"])
    labels = rows["label"].astype(int).to_numpy()
    vocabulary = Vocabulary(read_vocabulary(vocabulary_file(shared)))
    store = store_of([texts], Tokenizer(Tokenization(vocabulary, LENGTH)))
    return Reviews(run, texts, labels, store)


def exported(run: Path, format: str, **options: str) -> Path:
    """Export a run unless it has been exported, and return the folder."""
    folder = run / "-".join(["export", format, *options.values()])
    if not folder.exists():
        api.export(run=str(run), format=format, out=str(folder), **options)
    return folder


def inputs_of(store: TokenStore) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yield the number and the inputs of each text, the shortest text first."""
    for row in np.argsort(np.diff(store.offsets), kind="stable").tolist():
        packed = store.token_ids[store.offsets[row] : store.offsets[row + 1]][np.newaxis]
        values = packed % SEGMENT, packed // SEGMENT, np.ones_like(packed)
        yield row, dict(zip(INPUTS, values, strict=True))


def probabilities_of(serve: Served, store: TokenStore) -> np.ndarray:
    """Return the probabilities of all texts, which are served one at a time."""
    found = {row: serve(**inputs)["probabilities"][0] for row, inputs in inputs_of(store)}
    return np.array([found[row] for row in range(len(found))])


def tflite(folder: Path) -> Served:
    """Return the function of a TensorFlow Lite model, on all cores."""
    from ai_edge_litert.interpreter import Interpreter

    model = Interpreter(str(folder / "model.tflite"), num_threads=os.cpu_count())
    runner: Served = model.get_signature_runner()
    return runner


def savedmodel(folder: Path) -> Served:
    """Return the function of a SavedModel's token IDs."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder))  # The weights live as long as this object.

    def run(**inputs: np.ndarray) -> dict[str, np.ndarray]:
        tensors = {name: tf.constant(value) for name, value in inputs.items()}
        found = loaded.signatures["tokens"](**tensors)
        return {name: value.numpy() for name, value in found.items()}

    return run


def latency(serve: Served) -> float:
    """Return the median time in milliseconds for one text of 128 tokens."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1000, 30_000, (1, LENGTH)).astype(np.int32)
    inputs = dict(zip(INPUTS, (ids, np.zeros_like(ids), np.ones_like(ids)), strict=True))
    seconds = []
    for _ in range(LATENCY_CALLS):
        start = time.perf_counter()
        serve(**inputs)
        seconds.append(time.perf_counter() - start)
    return 1000 * statistics.median(seconds[5:])


FORMATS: dict[str, tuple[Callable[[Path], Served], str, dict[str, str]]] = {
    "SavedModel of token IDs": (savedmodel, "savedmodel", {"inputs": "tokens"}),
    "tflite": (tflite, "tflite", {}),
    "tflite, int8": (tflite, "tflite", {"quantize": "int8"}),
}


def agreement(shared: Path, out: Path) -> tuple[Results, str]:
    """Compare exports for TensorFlow and TensorFlow Lite with the run."""
    reviews, small = trained_reviews(shared, out), random_run(shared, out, "bert-small")
    results = [reviews.row("bertaccum predict", reviews.predicted)]
    for name, (load, format, options) in FORMATS.items():
        say(name)
        served = probabilities_of(load(exported(reviews.run, format, **options)), reviews.store)
        folder = exported(small, format, **options)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        timing = {"mib": size / 2**20, "milliseconds": latency(load(folder))}
        results.append(reviews.row(name, served) | timing)
    return results, shown(results, {"mib": "BERT-Small, MiB", "milliseconds": "ms per text"})


def shown(results: Results, more: dict[str, str]) -> str:
    """Return the table of `Reviews.row`, with further columns."""
    heads = ["export", "largest difference", "mean difference", "accuracy", "same labels"]
    rows = [
        [
            one["export"],
            f"{one['difference']:.1e}",
            f"{one['mean_difference']:.1e}",
            f"{one['accuracy']:.2%}",
            f"{one['same_labels']:.2%}",
            *(f"{one[name]:.1f}" if name in one else "" for name in more),
        ]
        for one in results
    ]
    return table([*heads, *more.values()], rows)


def onnx(shared: Path, out: Path) -> tuple[Results, str]:
    """Compare ONNX Runtime with the run, and time the prediction of all texts."""
    reviews = trained_reviews(shared, out)
    results = [reviews.row("bertaccum predict", reviews.predicted)]
    folder = exported(reviews.run, "huggingface")
    for quantize in ("none", "int8"):
        name = "ONNX Runtime" + (", int8" if quantize == "int8" else "")
        say(name)
        measured, found = by_onnx_runtime(reviews.texts, folder, out, quantize)
        results.append(reviews.row(name, found) | measured)
    more = {"mib": "MiB", "tokenize_seconds": "tokenizing, s", "seconds": "prediction, s"}
    return results, shown(results, more)


def by_onnx_runtime(
    texts: list[str], folder: Path, out: Path, quantize: str
) -> tuple[dict[str, Any], np.ndarray]:
    """Return what benchmarks/peers/hf_onnx.py measures, and its probabilities."""
    (out / "texts.json").write_text(json.dumps(texts))
    job = {
        "model": str(folder),
        "onnx": str(out / "onnx"),
        "quantize": quantize,
        "texts": str(out / "texts.json"),
        "tokens": None,
        "length": LENGTH,
        "batch": 32,
        "repeats": 3,
        "out": str(out / "probabilities.npy"),
    }
    (out / "job.json").write_text(json.dumps(job))
    script = Path(__file__).with_name("peers") / "hf_onnx.py"
    command = [PYTHON, script, out / "job.json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    measured = json.loads(done.stdout.splitlines()[-1])
    return measured | {"mib": measured["bytes"] / 2**20}, np.load(job["out"])


if __name__ == "__main__":
    run_part(__doc__.splitlines()[0], "exports", {"agreement": agreement, "onnx": onnx})
