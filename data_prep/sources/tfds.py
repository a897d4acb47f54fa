"""Any data set of tensorflow-datasets with text and label features as a source of `prepare`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bertaccum.errors import BertAccumError, ConfigError, InputError, reason
from bertaccum.options.prepare import PrepareConfig
from bertaccum.options.task_names import CLASSIFICATION, MULTI_LABEL, REGRESSION
from bertaccum.system.phrases import counted
from bertaccum.system.progress import Note, Progress
from data_prep.sources import tfds_features
from data_prep.sources.glue_tables import TASKS_OF_GLUE, plain_name
from data_prep.sources.published_splits import check_fractions, published_splits
from data_prep.sources.tfds_builds import data_folder, explaining_errors, patched_tfds
from data_prep.sources.tfds_features import ChosenFeatures
from data_prep.tables.rows import Part, Row, Source

_UNLABELED = "-1"


def tfds_options(config: PrepareConfig) -> dict[str, Any]:
    """Return the options that determine the result."""
    names = ("dataset", "text_column", "label_column", "test_fraction")
    return {name: getattr(config, name) for name in names}


def tfds_source(config: PrepareConfig, progress: Progress, note: Note) -> Source:
    """Download a data set, unless that has been done, and open it for reading."""
    builder = _builder(config, progress)
    chosen = tfds_features.choose(builder.info.features, config)
    _prepare(builder, config, progress)
    splits = published_splits(list(builder.info.splits), config.dataset, note)
    check_fractions(splits, config, str(config.dataset))
    parts = {name: _part(builder, split, chosen, note) for name, split in splits.items()}
    return Source(
        description=f"{builder.info.full_name} of tensorflow-datasets",
        train=parts.pop("train"),
        given=parts,
        task=_task(builder, chosen),
        order=() if chosen.kind == tfds_features.FLAGS else chosen.names,
        separator=tfds_features.SEPARATOR,
        joined=chosen.kind in (tfds_features.SEVERAL, tfds_features.FLAGS),
        facts=_glue_facts(builder, chosen),
    )


def _builder(config: PrepareConfig, progress: Progress) -> Any:
    import tensorflow_datasets as tfds

    try:
        with patched_tfds(progress):
            return tfds.builder(config.dataset, data_dir=data_folder())
    except tfds.core.registered.DatasetNotFoundError as error:
        what = f"`dataset` {config.dataset} is unknown to tensorflow-datasets {tfds.__version__}"
        raise ConfigError(what, "choose a name of tensorflow.org/datasets/catalog") from error
    except Exception as error:  # The builder of a data set may raise anything.
        raise ConfigError(f"`dataset` {config.dataset} cannot be used ({reason(error)})") from error


def _prepare(builder: Any, config: PrepareConfig, progress: Progress) -> None:
    elsewhere = "prepare it on a machine with a network and copy its folder in TFDS_DATA_DIR"
    try:
        with patched_tfds(progress), explaining_errors(f"the data set {config.dataset}", elsewhere):
            builder.download_and_prepare()
    except BertAccumError:
        raise
    except Exception as error:  # The builder of a data set may raise anything.
        message = f"tensorflow-datasets cannot prepare {config.dataset} ({reason(error)})"
        raise InputError(message, "choose another `dataset`") from error


def _task(builder: Any, chosen: ChosenFeatures) -> str | None:
    if chosen.kind in (tfds_features.SEVERAL, tfds_features.FLAGS):
        return MULTI_LABEL
    if chosen.kind != tfds_features.NUMBER:
        return CLASSIFICATION
    is_float = builder.info.features[chosen.labels[0]].np_dtype.__name__.startswith("float")
    return REGRESSION if is_float else CLASSIFICATION


def _glue_facts(builder: Any, chosen: ChosenFeatures) -> dict[str, Any]:
    """Return the entry of the manifest for a data set of GLUE; it is empty for any other."""
    config = builder.builder_config.name if builder.name == "glue" else ""
    task = TASKS_OF_GLUE.get(plain_name(config))
    if task is None:
        return {}
    # tensorflow-datasets has names for the classes that GLUE calls 0 and 1.
    same = set(chosen.names) <= set(task.classes)
    return task.facts(chosen.names if same else task.classes)


def _part(builder: Any, split: str, chosen: ChosenFeatures, note: Note) -> Part:
    where = f"{builder.info.full_name} {split}"
    labeled = not split.startswith("test") or _has_labels(builder, split, chosen)
    examples = tfds_features.examples_of(builder, split, chosen, labeled)
    if labeled and chosen.kind == tfds_features.CLASS:
        examples = _without_missing(examples, where, note)
    if not labeled and builder.name == "glue":
        examples = _in_order_of_submission(examples, builder, split)
    total = builder.info.splits[split].num_examples
    return Part(where, examples, total, may_lack_labels=not labeled)


def _has_labels(builder: Any, split: str, chosen: ChosenFeatures) -> bool:
    """Return whether any row of a split has a label other than -1."""
    if chosen.kind not in (tfds_features.CLASS, tfds_features.NUMBER):
        return True
    batches = tfds_features.batches_of(builder, split, chosen.labels, ragged=False)
    return any((batch[chosen.labels[0]] != int(_UNLABELED)).any() for batch in batches)


def _without_missing(examples: Iterator[Row], where: str, note: Note) -> Iterator[Row]:
    """Yield the rows that have a class, and note how many others there are."""
    missing = 0
    for row in examples:
        if row.label == _UNLABELED:
            missing += 1
        else:
            yield row
    if missing:
        note(f"{where}: skipped {counted(missing, 'row')} without a label")


def _in_order_of_submission(examples: Iterator[Row], builder: Any, split: str) -> Iterator[Row]:
    """Yield the rows in the order in which GLUE expects predictions, without the labels."""
    batches = tfds_features.batches_of(builder, split, ["idx"], ragged=False)
    indices = [index for batch in batches for index in batch["idx"].tolist()]
    pairs = sorted(zip(indices, examples, strict=True), key=lambda pair: pair[0])
    yield from (row for _, row in pairs)
