"""The inputs of runs, found and checked before TensorFlow is imported, and class weights."""

from __future__ import annotations

import dataclasses
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bertaccum.bert.checkpoint_files import checkpoint_home, is_run, lasting_name, plain_path
from bertaccum.bert.hub_checkpoint import pinned
from bertaccum.bert.model_finder import find_dimensions, find_model
from bertaccum.bert.model_source import ModelSource
from bertaccum.bert.vocabulary import MASK
from bertaccum.data.run_inputs import (
    RunInputs,
    corpus_of,
    note_reading,
    pretraining_inputs,
    read_inputs,
    tsvs_to_plan_with,
    tsvs_to_train_on,
)
from bertaccum.data.token_store import TokenStore
from bertaccum.distribution.cluster import describes_workers
from bertaccum.errors import ConfigError, InputError
from bertaccum.options.commands import FITTED, HALF, PlanConfig, TrainConfig
from bertaccum.options.fields import AUTO, tracker_names
from bertaccum.options.pretraining import PretrainConfig
from bertaccum.runs.folder import RunFolder
from bertaccum.runs.paths import RunPaths
from bertaccum.runs.record import config_to_resume, read_run_config
from bertaccum.system.files import check_writable
from bertaccum.system.hub_errors import UnreachableError
from bertaccum.system.hub_names import model_named, parse_pinned
from bertaccum.system.phrases import counted, listed
from bertaccum.system.progress import Note, Progress, ignore_note, tell
from bertaccum.tasks.head_mapping import kept_decoding
from bertaccum.tasks.kinds import check_options, make_task
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.prepared_labels import read_labels
from bertaccum.tasks.task import PLAIN, Task
from bertaccum.tasks.token_classification import TokenClassification
from bertaccum.training.teacher import READING, recorded_logits, with_teacher
from data_prep.tables.corpus import Corpus
from data_prep.tables.spellings import class_finder, finite_number

BALANCED = "balanced"
# Options that name files whose contents, not paths, decide the updates.
_FILES = ("init_checkpoint", "teacher", "unlabelled", "bert_config", "add_words")
# A weighted loss and its gradients must be float32 numbers.
_LARGEST_TOTAL = 1e30


def check_trackers(config: TrainConfig) -> None:
    """Raise ConfigError if the package of a tracker is not installed."""
    for name in tracker_names(config.track):
        found = find_spec(name)
        # W&B writes to a folder `wandb`, which Python finds as a package without a file.
        if found is None or found.origin is None:
            what = f"`track` {config.track} needs the package {name}"
            raise ConfigError(what, f"run pip install 'bertaccum[{name}]', or set `track` none")


def check_task_options(config: TrainConfig, labels: Labels) -> None:
    """Raise ConfigError if an option does not suit the task, or `class_weight` is not valid."""
    task = make_task(labels)
    dataclasses.replace(config, task=labels.task)  # Raises the error if options contradict it.
    if config.best_by not in (None, *task.metrics):
        raise ConfigError(
            f"`best_by` {config.best_by} is not a metric of the task {labels.task}",
            f"choose one of {', '.join(task.metrics)}",
        )
    unused = {"class_weight": None, "label_smoothing": 0.0, "calibrate": False, "thresholds": HALF}
    check_options(task, [name for name, value in unused.items() if getattr(config, name) != value])
    if config.class_weight not in (None, BALANCED):
        named_weights(str(config.class_weight), labels)


def weighted(
    store: TokenStore, task: Task, option: str | None, tsv: Path
) -> tuple[TokenStore, Task]:
    """Return the token store of train.tsv and the task, with the weights of classes or of tags.

    The weight of an example is multiplied by that of its class. Each word has the weight of its
    tag, so that the mean weight of its words multiplies that of an example.

    Args:
      option: The option `class_weight`, or None.
      tsv: Path of train.tsv.

    Raises:
      ConfigError: The class weights are not valid.
      InputError: All weights are zero, or they are too large.
    """
    weights = store.weights
    if option is not None:
        classes = store.tags if isinstance(task, TokenClassification) else store.labels
        of_classes = class_weights(option, task.labels, classes)
        factors = of_classes[classes]
        if isinstance(task, TokenClassification):
            task = dataclasses.replace(task, weights=tuple(of_classes.tolist()))
            rows = np.repeat(np.arange(len(store)), store.words)
            sums = np.bincount(rows, factors, minlength=len(store))
            factors = np.float32(sums / np.maximum(store.words, 1))
        with np.errstate(over="ignore"):
            weights = weights * factors
    if (total := float(weights.sum(dtype=np.float64))) > _LARGEST_TOTAL:
        what = f"its weights have the sum {total:.3g}, above {_LARGEST_TOTAL:g}"
        raise InputError(what, "divide them by the same number", path=tsv)
    if not weights.any():
        raise InputError("every row has weight 0", "raise the weights of some rows", path=tsv)
    return dataclasses.replace(store, weights=weights), task


def class_weights(option: str, labels: Labels, classes: np.ndarray) -> np.ndarray:
    """Return the weight of each class, [classes] float32.

    Args:
      option: The option `class_weight`.
      labels: Labels of the data.
      classes: Class numbers of the examples, [examples], or tags of all words.

    Raises:
      ConfigError: The option names no valid weights.
    """
    if option != BALANCED:
        return named_weights(option, labels)
    counts = np.bincount(classes, minlength=len(labels.values))
    # As in scikit-learn's `class_weight="balanced"`: examples / (classes * examples of the class).
    return (len(classes) / (len(counts) * np.maximum(counts, 1))).astype(np.float32)


def named_weights(option: str, labels: Labels) -> np.ndarray:
    """Return the weight of each class, [classes] float32, by default 1.

    Raises:
      ConfigError: The option is not of the form `NAME=W,NAME=W`, or no weight is above 0.
    """
    weights, find = dict[str, float](), class_finder(labels.names)
    for part in option.split(","):
        label, _, number = part.rpartition("=")
        name = find(label.strip())
        if name is None or name in weights:
            wrong = "is named twice" if name in weights else "is not a class"
            raise ConfigError(
                f"`class_weight` {option}: {label.strip() or part!r} {wrong}",
                f"pass {BALANCED}, or NAME=W for some of the classes {', '.join(labels.names)}",
            )
        weights[name] = _weight(number, option)
    found = [weights.get(name, 1.0) for name in labels.names]
    if not any(found):
        raise ConfigError(f"`class_weight` {option} gives every class weight 0", "raise one")
    return np.array(found, np.float32)


def _weight(number: str, option: str) -> float:
    weight = finite_number(number)
    if weight is None or weight < 0:
        raise ConfigError(
            f"`class_weight` {option}: {number!r} is not a weight", "use a number of at least 0"
        )
    return weight


def run_inputs(
    config: TrainConfig,
    progress: Progress,
    note: Note = ignore_note,
    recorded: list[str] | None = None,
) -> RunInputs:
    """Return the data, the labels and the model of a run; download the model if needed.

    Args:
      recorded: Names of the teacher's logits when the run began, if it is resumed.

    Raises:
      ConfigError, InputError: A file or an option cannot be used.
    """
    check_trackers(config)
    if isinstance(config, PretrainConfig):
        return _pretraining_inputs(config, progress, note)
    data = Path(config.data)
    tsvs, labels = tsvs_to_train_on(data), read_labels(data, config.task, note)
    check_task_options(config, labels)
    source = find_model(config, progress)
    if labels.pairs and (doubt := source.segment_warning()):
        note(doubt)
    inputs = read_inputs(source, make_task(labels), tsvs, config)
    return with_teacher(config, inputs, progress, recorded)


def _pretraining_inputs(config: PretrainConfig, progress: Progress, note: Note) -> RunInputs:
    corpus, source = corpus_of(config, note), find_model(config, progress)
    if source.vocabulary and MASK not in source.vocabulary.entries:
        raise InputError(f"its vocabulary has no {MASK}", "use another model", path=source.name)
    if config.add_words is not None:
        source = _with_words(source, config.add_words, corpus, progress, note)
    return pretraining_inputs(source, corpus, config, progress)


def _with_words(
    source: ModelSource, option: str, corpus: Corpus, progress: Progress, note: Note
) -> ModelSource:
    """Return a model with the words that the option `add_words` selects."""
    from bertaccum.bert.added_words import add_words, read_words
    from bertaccum.data.corpus_words import frequent_split_words

    vocabulary, path = source.vocabulary, Path(option)
    number = int(option) if option.isdecimal() and not path.exists() else None
    if source.of_run or vocabulary is None:
        what = "`add_words` needs a checkpoint that is not a run's"
        raise ConfigError(what, "export the run to the format google, and start from the export")
    if number == 0:
        raise ConfigError("`add_words` 0 adds none", "omit it, or use a higher number")
    if number is None:
        words = read_words(path, vocabulary)
    else:
        words = frequent_split_words(corpus, vocabulary, number, progress)
    extended = add_words(source, words)
    added = extended.encoder.vocab_size - source.encoder.vocab_size
    note(f"the vocabulary gets {counted(added, 'new word')}")
    return extended


def check_run(config: TrainConfig, progress: Progress) -> RunInputs | None:
    """Check the folder of a new run, and return its inputs; None in a worker.

    If a worker failed now, the other workers would wait for it.

    Raises:
      ConfigError, InputError: A file, folder or option cannot be used.
    """
    if describes_workers(config.strategy):
        return None
    RunFolder.new_path(config.out)
    return _new_inputs(config, progress)


def _new_inputs(config: TrainConfig, progress: Progress) -> RunInputs:
    """Return the inputs of a new run, and note how they are read."""
    note = partial(tell, progress)
    if not isinstance(config, PretrainConfig):
        note_reading(tsvs_to_train_on(Path(config.data)), note)
    inputs = run_inputs(config, progress, note)
    if inputs.source.of_run and inputs.head is not None:
        _note_kept_head(config, inputs, note)
    return inputs


def _note_kept_head(config: TrainConfig, inputs: RunInputs, note: Note) -> None:
    """Note what a run that keeps the head of another run does not take over from it."""
    source = inputs.source
    if config.max_updates == 0:
        own = read_run_config(Path(plain_path(str(config.init_checkpoint))))
        reading = {name: getattr(own, name) for name in READING}
        others = [f"`{name}` {v}" for name, v in reading.items() if v != getattr(config, name)]
        if others:
            note(f"run {source.name} reads texts with {listed(others)}, but the new run does not")
    elif not config.calibrate and config.thresholds != FITTED:
        plain, kept = (vars(one) for one in (PLAIN, kept_decoding(source, inputs.head)))
        if fitted := [name for name in plain if plain[name] != kept[name]]:
            what = f"the {' and '.join(fitted)} of run {source.name} are not kept"
            note(f"{what}: `calibrate` and `thresholds` {FITTED} fit them to the trained model")


def with_commit(config: TrainConfig, out: Path, progress: Progress) -> TrainConfig:
    """Return options with the commits of models on the Hub, those of earlier runs in a folder.

    Paths of runs are resolved. A branch or a link such as `runs/latest` may move while the runs are
    trained, but all of them use the same weights.
    """
    for option in ("init_checkpoint", "teacher"):
        value = getattr(config, option)
        if value is None:
            continue
        if (asked := model_named(value)) is None:
            # The name of other weights may say that they are cased; the target of a link may not.
            name = lasting_name(value) if is_run(Path(plain_path(value))) else value
        else:
            files = sorted(out.glob("**/seed-*/config.yaml"))
            earlier = (getattr(read_run_config(path.parent), option) for path in files)
            same = (own for own in earlier if (found := parse_pinned(own)) and asked.same_as(found))
            name = next(same, None) or pinned(value, progress)
        values: dict[str, Any] = {option: name}
        config = dataclasses.replace(config, **values)
    return config


def check_seeds(config: TrainConfig, seeds: int, progress: Progress) -> Path:
    """Check the inputs of several runs, and return the folder for their run folders.

    Raises:
      ConfigError, InputError: A file, folder or option cannot be used.
    """
    if config.out is None:
        raise ConfigError("several runs need `out`", "set it to a folder for them")
    if RunPaths(Path(config.out)).config.exists():
        raise ConfigError(f"`out` {config.out} is a run folder", "choose another folder")
    dataclasses.replace(config, seed=config.seed + seeds - 1)  # This checks the last seed.
    config = with_commit(config, Path(config.out), progress)
    _new_inputs(config, progress)
    return Path(str(config.out))


def check_resumed(run: Path, options: dict[str, Any], progress: Progress) -> RunInputs | None:
    """Return the inputs of the run to resume; None in a worker.

    Raises:
      ConfigError, InputError: The run, its data or its model cannot be used.
    """
    if describes_workers(options.get("strategy", AUTO)):
        return None
    began = config_to_resume(run, options)
    names = {"data", "text", "vocab", "track"} | gone_files(began)
    new = {name: options[name] for name in names & options.keys()}
    config = dataclasses.replace(began, **new)
    try:
        return run_inputs(config, progress, partial(tell, progress), recorded_logits(run))
    except UnreachableError as error:
        remedy = "connect to it, or copy the folder HF_HOME from the machine where the run began"
        raise InputError(error.message, remedy, path=error.path) from None


def gone_files(config: TrainConfig) -> set[str]:
    """Return the options of a run that name files or folders that are no longer there."""
    paths = {name: getattr(config, name, None) for name in _FILES}
    # A run records absolute paths; names of models are not paths.
    local = {name: path for name, path in paths.items() if path and Path(path).is_absolute()}
    return {name for name, path in local.items() if not Path(checkpoint_home(path)).exists()}


def check_plan(config: PlanConfig, progress: Progress) -> None:
    """Check `out`, the data and the model of a plan.

    Raises:
      ConfigError, InputError: A file, folder or option cannot be used.
    """
    check_writable(Path(config.out), "`out`")
    tsvs_to_plan_with(config)
    find_dimensions(config, progress)
