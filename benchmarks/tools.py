"""Helpers of several benchmarks: tables, data, measurement jobs, the command line."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.presets import PRESET_CONFIGS
from bertaccum.bert.tokenization import SEGMENT, TAG_BIT, Tokenization
from bertaccum.bert.tokenizer_files import read_vocabulary
from bertaccum.bert.vocabulary import Vocabulary
from bertaccum.data.corpus_store import open_corpus
from bertaccum.data.run_inputs import read_inputs
from bertaccum.data.token_store import TokenStore
from bertaccum.data.tokenizing import open_store
from bertaccum.data.windows import updates_per_epoch, window_rows
from bertaccum.options.commands import FIRST, TrainConfig
from bertaccum.planning.measurement import PlanRequest
from bertaccum.system.progress import silent
from bertaccum.tasks.classification import Classification
from bertaccum.tasks.kinds import make_task
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.prepared_labels import read_labels
from bertaccum.training.checkpoints import saved_states
from data_prep.tables.corpus import find_corpus

Results = list[dict[str, Any]]
# Maps the folder of shared data and the output folder to results and their Markdown table.
Part = Callable[[Path, Path], tuple[Results, str]]

# A task with two classes.
TASK = Classification(Labels.numbered(2))


def table(heads: list[str], rows: list[list[Any]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def spread(values: list[float]) -> str:
    """Return the mean and the standard deviation."""
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def prepared_yelp(shared: Path, out: Path) -> Path:
    """Prepare the real reviews with the command line, and return their folder."""
    data = out / "yelp"
    archive = shared / "data/yelp/yelp_review_polarity_csv.tgz"
    command = [sys.executable, "-m", "bertaccum", "prepare", "--archive", str(archive)]
    command += ["--allow-unverified-archive", "--out", str(data)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return data


def vocabulary_file(shared: Path) -> Path:
    return shared / "data/vocab/vocab.txt"


def yelp_stores(
    shared: Path, out: Path, lengths: Sequence[int]
) -> Iterator[tuple[int, TokenStore]]:
    """Yield each length with a store of the real training reviews, truncated to it."""
    data = prepared_yelp(shared, out)
    vocabulary = Vocabulary(read_vocabulary(vocabulary_file(shared)))
    task = make_task(read_labels(data))
    for length in lengths:
        yield (
            length,
            open_store(data / "train.tsv", task, Tokenization(vocabulary, length), silent),
        )


def write_tokens(store: TokenStore, rows: int, path: Path) -> Path:
    """Write the tokens of texts for peers, and return the file's path.

    Args:
      rows: How many texts to write, those that a run with seed 0 trains on first.
    """
    first = _in_training_order(store, rows)
    np.savez(path, token_ids=first.token_ids, offsets=first.offsets, labels=first.labels)
    return path


def _in_training_order(store: TokenStore, rows: int) -> TokenStore:
    """Return the rows that a run with seed 0 trains on first, in its order."""
    updates = range(updates_per_epoch(len(store), 32))
    order = [window_rows(update, len(store), 32, 0)[1] for update in updates]
    chosen = np.concatenate(order)[:rows]
    return store.of_rows(chosen, store.labels[chosen])


def write_tags(tsv: Path, vocabulary: Path, length: int, path: Path) -> int:
    """Write the tokens and tags of a TSV for peers, and return the number of different tags."""
    entries, task = Vocabulary(read_vocabulary(vocabulary)), make_task(read_labels(tsv.parent))
    store = open_store(tsv, task, Tokenization(entries, length, words=FIRST), silent)
    store = _in_training_order(store, len(store))
    ids, tags = store.token_ids & (SEGMENT - 1), (store.token_ids >> TAG_BIT) - 1
    np.savez(path, token_ids=ids, offsets=store.offsets, labels=np.where(tags < 0, -100, tags))
    return task.labels.outputs


def write_sequences(data: Path, vocabulary: Path, path: Path) -> Path:
    """Write the full sequences of 128 tokens that a data folder's texts fill, for peers."""
    tokenization = Tokenization(Vocabulary(read_vocabulary(vocabulary)), 128)
    store, _ = open_corpus(find_corpus([data]), tokenization, silent)
    whole = store.token_ids[: 128 * (len(store) - 1)]  # The last sequence may be shorter.
    np.savez(path, token_ids=whole, offsets=store.offsets[:-1], labels=store.labels[:-1])
    return path


def random_store(rows: int, length: int) -> TokenStore:
    """Return a store of random tokens in two classes, of lengths `length // 2` to `length`."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(length // 2, length + 1, rows)
    return TokenStore(
        token_ids=rng.integers(1, 30_000, lengths.sum()).astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        shapes=np.stack([np.ones(rows, np.int32), lengths], axis=1),
        labels=(np.arange(rows) % 2).astype(np.int32),
        weights=np.ones(rows, np.float32),
    )


def train_command(shared: Path, data: Path, run: Path, preset: str) -> list[str]:
    """Return the command that trains a preset from random weights into a run folder."""
    options = ["--data", data, "--out", run, "--model", preset, "--init-checkpoint", "none"]
    options += ["--vocab", vocabulary_file(shared)]
    return [sys.executable, "-m", "bertaccum", "train", *map(str, options)]


def random_run(shared: Path, out: Path, preset: str) -> Path:
    """Return a run of one update of a preset on the real reviews; make it unless it exists."""
    run = out / f"run-{preset}"
    if not (run / "best").exists():
        command = train_command(shared, prepared_yelp(shared, out), run, preset)
        command += ["--max-updates", "1", "--micro-batch", "8"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return run


def difference(one: Path, other: Path) -> float:
    """Return the largest difference of a number in two runs' last checkpoints.

    The numbers are weights, moments and sums of gradients.
    """
    import tensorflow as tf

    states = [saved_states(run / "checkpoints")[-1] / "state" for run in (one, other)]
    readers = [tf.train.load_checkpoint(str(state)) for state in states]
    kinds = readers[0].get_variable_to_dtype_map()
    names = [name for name, kind in kinds.items() if kind.is_floating]
    tensors = ([reader.get_tensor(name) for reader in readers] for name in names)
    return max(float(np.abs(a - b).max()) for a, b in tensors if a.size)


def preset_job(preset: str, config: TrainConfig, limit: int | None, steps: int) -> dict[str, Any]:
    """Return the job of a measurement process: a preset with two classes and no data."""
    source = ModelSource(preset, PRESET_CONFIGS[preset], None, None)
    inputs = read_inputs(source, TASK, [], config)
    request = PlanRequest(config, inputs)
    return request.job(config.offload, limit, steps)


def run_part(description: str, name: str, parts: dict[str, Part]) -> None:
    """Run the part named on the command line.

    Writes `build/NAME/NAME-PART.json` and prints the part's table.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("part", choices=parts)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--out", type=Path, default=Path("build") / name)
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.environ["BERTACCUM_CACHE"] = str(out / "cache")
    results, text = parts[arguments.part](arguments.shared.resolve(), out)
    (out / f"{name}-{arguments.part}.json").write_text(json.dumps(results, indent=2) + "\n")
    print(text)
