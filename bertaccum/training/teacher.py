"""The teacher of a run, found and checked before TensorFlow is imported."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from bertaccum.bert.checkpoint_files import is_run, plain_path
from bertaccum.bert.model_finder import find_model
from bertaccum.bert.model_source import NO_CHECKPOINT, ModelSource
from bertaccum.bert.tokenization import tokenization_of
from bertaccum.data.run_inputs import RunInputs, Teacher, Unlabelled
from bertaccum.data.token_store import unlabelled_digest, unlabelled_identity
from bertaccum.errors import BertAccumError, ConfigError, InputError
from bertaccum.options.commands import StepConfig, TrainConfig
from bertaccum.options.fields import field_names
from bertaccum.runs.paths import RunPaths
from bertaccum.runs.record import read_run_config
from bertaccum.system.cache import cache_folder, cache_paths, is_cached
from bertaccum.system.files import read_mapping, sha256
from bertaccum.system.progress import Progress, tell
from bertaccum.tasks.head_mapping import teacher_mapping
from data_prep.tables.manifest import is_prepared

# Increment this number if the same teacher and texts would give other logits.
_FORMAT = 2
# Options of a run that decide what its model reads of a text.
READING = ("max_seq_length", "truncate", "head_fraction", "windows", "stride", "pool")
# Name in inputs.json of the digests of the logits.
TEACHER = "teacher"
_HINT = "choose a fine-tuned classifier as `teacher`"


def with_teacher(
    config: TrainConfig, inputs: RunInputs, progress: Progress, recorded: list[str] | None = None
) -> RunInputs:
    """Return the inputs of a run with its teacher and its unlabeled texts, if it has any.

    Args:
      recorded: Names of the logits when the run began, if it is resumed. If they are still in the
        cache, the teacher itself is not needed.

    Raises:
      ConfigError, InputError: The teacher or the file cannot be used.
    """
    if config.teacher is None:
        return inputs
    if config.unlabelled is not None:
        inputs = dataclasses.replace(inputs, unlabelled=_unlabelled(config, inputs))
    if recorded and all(_is_cached(digest, progress) for digest in recorded):
        return dataclasses.replace(inputs, teacher=Teacher(recorded))
    named = plain_path(config.teacher)
    if recorded and Path(named).is_absolute() and not Path(named).exists():
        raise InputError(
            "this teacher is gone, and its logits are no longer in the cache",
            "set `teacher` to its new path, or start a new run with another `out`",
            path=named,
        )
    return dataclasses.replace(inputs, teacher=_teacher(config, named, inputs, progress))


def recorded_logits(run: Path) -> list[str] | None:
    """Return the names of the logits with which a run began; None if it has no teacher."""
    found = (read_mapping(RunPaths(run).inputs) or {}).get(TEACHER)
    return found if isinstance(found, list) and all(isinstance(d, str) for d in found) else None


def logits_folder(digest: str) -> Path:
    """Return the folder in the cache of a teacher's logits for a file."""
    return cache_folder() / "teachers" / digest


def _is_cached(digest: str, progress: Progress) -> bool:
    return any(is_cached(place, progress) for place in cache_paths(logits_folder(digest)))


def _unlabelled(config: TrainConfig, inputs: RunInputs) -> Unlabelled:
    assert config.unlabelled is not None
    path = Path(config.unlabelled)
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "there is no such file"
        raise InputError(what, "choose another file with `unlabelled`", path=path)
    config = dataclasses.replace(config, task=inputs.labels.task)
    tokenization, digest = tokenization_of(inputs.vocabulary, config, training=True), sha256(path)
    store = unlabelled_digest(path, digest, inputs.labels, tokenization)
    return Unlabelled(path, digest, store)


def _teacher(config: TrainConfig, named: str, inputs: RunInputs, progress: Progress) -> Teacher:
    found, source = _model(config, named, inputs, progress)
    mapping = teacher_mapping(source, inputs.labels, named)
    assert source.vocabulary is not None
    model = [
        _FORMAT,
        source.weights_digest,
        dataclasses.asdict(source.encoder),
        tokenization_of(source.vocabulary, found).identity(),
        [found.pooling, inputs.labels.task, inputs.labels.outputs, inputs.labels.pairs],
        dataclasses.asdict(mapping),
    ]
    texts: list[Any] = [[inputs.tsv_digests[0], is_prepared(inputs.tsvs[0])]]
    if inputs.unlabelled is not None:
        texts.append(unlabelled_identity(inputs.unlabelled.path, inputs.unlabelled.digest))
    keys = (json.dumps([model, one]).encode() for one in texts)
    digests = [hashlib.sha256(key).hexdigest()[:32] for key in keys]
    return Teacher(digests, found, mapping, source.pinned, source.weights_digest)


def _model(
    config: TrainConfig, named: str, inputs: RunInputs, progress: Progress
) -> tuple[StepConfig, ModelSource]:
    """Return the options with which a teacher reads texts, and its model."""
    if named == NO_CHECKPOINT:
        raise ConfigError(f"`teacher` {named} has no weights", _HINT)
    task, of_run = inputs.labels.task, is_run(Path(named))
    options = StepConfig(init_checkpoint=named, keep_head=True, max_seq_length=3, task=task)
    if of_run:
        trained = read_run_config(Path(named))
        if trained.predicts_masked:
            raise InputError("was pretrained, so it has no classes", _HINT, path=named)
        reading = {name: getattr(trained, name) for name in READING}
        options = dataclasses.replace(options, task=trained.task, **reading)
    try:
        source = find_model(options, progress)
    except BertAccumError as error:
        # The finder names the option of the model to start from.
        message, hint = (
            text.replace("init_checkpoint", "teacher") for text in (error.message, error.hint)
        )
        others = field_names(StepConfig) - {"init_checkpoint"}
        hint = _HINT if any(f"`{name}`" in hint for name in others) else hint
        raise InputError(message, hint, path=error.path) from None
    if of_run:
        return options, source
    if inputs.labels.pairs and (doubt := source.segment_warning()):
        tell(progress, doubt)
    # Another program's teacher reads as much of a text as the model does, in one passage.
    assert source.format is not None and source.checkpoint is not None and source.head is not None
    tensors = source.format.tensors(source.checkpoint)
    kernel, bias = source.format.head_in(tensors)
    if kernel not in tensors or bias not in tensors:
        raise InputError("has no head of a classifier", _HINT, path=named)
    head = dataclasses.replace(source.head, outputs=tensors[bias].shape[0])
    if inputs.labels.names and not head.names:
        classes = f"in the order of the classes {', '.join(inputs.labels.names)}"
        tell(progress, f"{named} has no class names, so its outputs are taken {classes}")
    own = tokenization_of(inputs.vocabulary, dataclasses.replace(config, task=task))
    length = min(own.longest_text, source.encoder.max_position_embeddings)
    options = dataclasses.replace(
        options, max_seq_length=length, truncate=config.truncate, head_fraction=config.head_fraction
    )
    return options, dataclasses.replace(source, head=head)
