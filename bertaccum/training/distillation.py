"""The training data of a run with a teacher: examples, unlabeled texts, and its logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertaccum.bert.precision import length_multiple
from bertaccum.bert.tokenization import tokenization_of
from bertaccum.data.run_inputs import RunInputs
from bertaccum.data.teacher_labels import TeacherLabels, TeacherLogits
from bertaccum.data.token_store import TokenStore
from bertaccum.data.tokenizing import open_unlabelled
from bertaccum.errors import InputError
from bertaccum.options.commands import TrainConfig
from bertaccum.system.phrases import counted
from bertaccum.system.progress import Progress
from bertaccum.tasks.distilled import TEMPERATURE, WEIGHT, Distilled
from bertaccum.tasks.task import Task


def join_teacher(
    config: TrainConfig,
    inputs: RunInputs,
    task: Task,
    store: TokenStore,
    logits: Sequence[TeacherLogits],
    progress: Progress,
) -> tuple[TokenStore, TeacherLabels]:
    """Return the examples to train on, with unlabeled texts after the others, and their labels.

    Args:
      store: Token store of train.tsv, padded as the model pads it.
      logits: Result of `open_logits`.

    Raises:
      InputError: The logits are those of other texts.
    """
    _check_count(logits[0], len(store), inputs.tsvs[0])
    count, words = len(store), int(store.words.max()) if config.tags_words else None
    if inputs.unlabelled is not None:
        more = open_unlabelled(
            inputs.unlabelled.path,
            task,
            tokenization_of(inputs.vocabulary, config, training=True),
            progress,
            inputs.unlabelled.store_digest,
        )
        longest = inputs.source.encoder.max_position_embeddings
        more = more.padded_to(length_multiple(config.precision), longest)
        _check_count(logits[1], len(more), inputs.unlabelled.path)
        if words is not None:  # Words count if both models read them.
            words = max(words, int(more.words.max()))
            read = np.minimum(more.words, logits[1].read_words())
            more = dataclasses.replace(more, weights=read.astype(np.float32))
        store = store.followed_by(more)
    objective = Distilled(
        task, words, config.teacher_weight or WEIGHT, config.temperature or TEMPERATURE
    )
    unlabeled = logits[1] if len(logits) > 1 else None
    return store, TeacherLabels(objective, logits[0], unlabeled, count)


def _check_count(logits: TeacherLogits, texts: int, path: Path) -> None:
    """Raise InputError if a file changed, or an earlier version read other texts from it."""
    if logits.examples != texts:
        found = f"it has {counted(texts, 'text')}, and the teacher read {logits.examples:,}"
        what = f"has other texts than when this run began: {found}"
        remedy = "restore the original file, or start a new run with another `out`"
        raise InputError(what, remedy, path=path)
