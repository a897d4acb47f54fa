"""The logits of a teacher, computed once and kept in the cache.

A process of its own, which runs this module, computes them. The memory of the device is therefore
free again when the run builds its own model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bertaccum.bert.model_finder import find_model
from bertaccum.bert.model_source import HeadMapping
from bertaccum.bert.tokenization import tokenization_of
from bertaccum.bert.tokenizer import Tokenizer
from bertaccum.data.given_texts import read_unlabelled
from bertaccum.data.run_inputs import RunInputs
from bertaccum.data.teacher_labels import LOGITS, OFFSETS, TeacherLogits
from bertaccum.data.token_store import save_array
from bertaccum.data.tokenizing import Columns, store_of_tokens, texts_of_table, tokenized
from bertaccum.distribution.device_memory import check_gpu_is_free, limit_memory
from bertaccum.errors import InputError, RunError, reason
from bertaccum.inference.predictor import Predictor
from bertaccum.options.commands import EvalConfig, TrainConfig
from bertaccum.options.fields import size_in_bytes
from bertaccum.options.task_names import TOKEN_CLASSIFICATION
from bertaccum.system.atomic import new_folder
from bertaccum.system.cache import cached_folder, is_intact, seal
from bertaccum.system.child_process import ChildProcess, answering
from bertaccum.system.files import check_digest, sha256
from bertaccum.system.locks import lock
from bertaccum.system.progress import Progress, silent
from bertaccum.system.temporary_paths import temporary_path
from bertaccum.tasks.labels import Labels
from bertaccum.training.recipe import build_model
from bertaccum.training.teacher import logits_folder
from data_prep.tables.tsv import read_tsv
from data_prep.tables.words import separated_words

# Number of texts that are sorted by length together. An interrupted computation continues at a
# multiple of it, so that every text is computed together with the same others.
_TOGETHER = 1024


def open_logits(config: TrainConfig, inputs: RunInputs, progress: Progress) -> list[TeacherLogits]:
    """Return the logits for train.tsv and for unlabeled texts; compute those not in the cache."""
    teacher, labels = inputs.teacher, inputs.labels
    assert teacher is not None
    files = [(inputs.tsvs[0], inputs.tsv_digests[0], True)]
    if inputs.unlabelled is not None:
        files.append((inputs.unlabelled.path, inputs.unlabelled.digest, False))

    def compute(folder: Path, path: Path, contents: str, labeled: bool) -> None:
        if teacher.config is None or teacher.mapping is None:
            raise InputError("was damaged or removed", "run the command again", path=folder)
        _unfinished(folder).touch()  # Raises OSError if the cache cannot be written.
        job = {
            "folder": str(folder),
            "config": dataclasses.asdict(teacher.config),
            "mapping": dataclasses.asdict(teacher.mapping),
            "weights_digest": teacher.weights_digest,
            "labels": dataclasses.asdict(labels),
            "texts": str(path),
            "contents": contents,
            "labeled": labeled,
            "limit_bytes": size_in_bytes("memory_limit", config.memory_limit),
        }
        with ChildProcess(__name__, "teacher", progress) as process:
            if "out_of_memory" in process.ask(job):
                check_gpu_is_free("the teacher does not fit in memory")
                hint = "raise `memory_limit`, or choose a smaller `teacher`"
                raise RunError("the teacher does not fit in memory", hint)

    found = []
    for digest, (path, contents, labeled) in zip(teacher.digests, files, strict=True):
        make = partial(compute, path=path, contents=contents, labeled=labeled)
        folder = cached_folder(logits_folder(digest), make, progress)
        words = labels.task == TOKEN_CLASSIFICATION
        found.append(TeacherLogits.open(folder, labels.outputs, words))
    return found


def write_logits(job: dict[str, Any], progress: Progress) -> None:
    """Write a folder with the logits that a job describes.

    Logits that an interrupted computation left are kept.

    Raises:
      InputError: The file of the texts has changed since its digest was computed.
      RunError: The disk is full, or a logit is not finite.
    """
    folder = Path(job["folder"])
    try:
        with contextlib.ExitStack() as files:
            file = files.enter_context(_unfinished(folder).open("ab"))
            if not lock(file):  # Other processes may write to this file, so use another one.
                own = files.enter_context(temporary_path(_unfinished(folder), Path.touch))
                file = files.enter_context(own.open("ab"))
            if not is_intact(folder):  # Another process may have just written it.
                _write(file, folder, job, progress)
            _unfinished(folder).unlink(missing_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot be written ({reason(error)})",
            "free space there, or set BERTACCUM_CACHE to another folder, and run again",
            path=folder.parent,
        ) from None


def _write(file: Any, folder: Path, job: dict[str, Any], progress: Progress) -> None:
    labels, path = Labels(**job["labels"]), Path(job["texts"])
    if job["labeled"]:
        columns = texts_of_table(path, read_tsv(path), labels.pairs)
    else:
        columns = read_unlabelled(path, labels, silent)
    check_digest(path, sha256(path), job["contents"])
    counts = [1] * len(columns[0])
    if labels.task == TOKEN_CLASSIFICATION:
        counts = [len(separated_words(text)) for text in columns[0]]
    offsets = np.cumsum([0, *counts])
    row_bytes = labels.outputs * np.dtype(np.float32).itemsize
    done = int(np.searchsorted(offsets, file.tell() // row_bytes, side="right")) - 1
    done = done if done == len(counts) else done // _TOGETHER * _TOGETHER
    file.truncate(int(offsets[done]) * row_bytes)
    for logits in _computed([column[done:] for column in columns], labels, job, progress):
        wanted = counts[done : done + len(logits)]
        file.write((_rows(logits, wanted) if logits.ndim == 3 else logits).tobytes())
        file.flush()
        done += len(logits)
        progress(f"the teacher reads {path}", done, len(counts))
    with new_folder(folder, existing="keep") as temporary:
        Path(file.name).replace(temporary / LOGITS)
        save_array(temporary / OFFSETS, offsets)
        seal(temporary, folder)


def _computed(
    columns: Columns, labels: Labels, job: dict[str, Any], progress: Progress
) -> Iterator[np.ndarray]:
    """Yield the logits of the texts, as outputs of the student, for `_TOGETHER` texts at a time.

    They have the shape [texts, outputs], or [texts, words, outputs] and are NaN after the last word
    that the teacher reads.
    """
    if not columns[0]:
        return
    options = TrainConfig(**job["config"] | {"dropout": 0.0, "precision": "float32"})
    source = find_model(options, progress)
    assert source.vocabulary is not None
    # The logits have the name of the weights that the run has found.
    source.check_digest(job["weights_digest"])
    model = build_model(options, source, labels.outputs, HeadMapping([*range(labels.outputs)]))
    mapping, predictor = HeadMapping(**job["mapping"]), Predictor(model, EvalConfig().batch)
    tokenizer = Tokenizer(tokenization_of(source.vocabulary, options))
    for tokens, _ in tokenized(columns, tokenizer, _TOGETHER):
        store = store_of_tokens(tokens)
        logits = predictor(store, silent)
        if np.isinf(logits).any() or (logits.ndim == 2 and np.isnan(logits).any()):
            raise RunError("the logits of the teacher are not finite", "choose another `teacher`")
        yield (logits[..., mapping.rows] - np.float32(mapping.mean)) / np.float32(mapping.std)


def _rows(logits: np.ndarray, counts: list[int]) -> np.ndarray:
    """Return the logits of all words, [words, outputs], given those of texts and their numbers."""
    most = max(counts, default=0)
    shape = len(counts), max(most, logits.shape[1]), logits.shape[2]
    padded = np.full(shape, np.nan, np.float32)
    padded[:, : logits.shape[1]] = logits
    return padded[np.arange(padded.shape[1]) < np.array(counts)[:, None]]


def _unfinished(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.unfinished")


def main() -> None:
    """Answer the job on stdin."""
    with answering() as (answer, progress):
        job = json.loads(sys.stdin.readline())
        limit_memory(job["limit_bytes"])
        try:
            write_logits(job, progress)
            answer(done=True)
        except tf.errors.ResourceExhaustedError:
            answer(out_of_memory=True)


if __name__ == "__main__":
    main()
