"""What a data folder has to train on, without TensorFlow, whose import takes seconds."""

from __future__ import annotations

from pathlib import Path

from bertaccum.bert.model_source import ModelSource
from bertaccum.config import PlanConfig
from bertaccum.data.labels import Labels, labels_of
from bertaccum.data.run_inputs import RunInputs
from bertaccum.data.token_store import store_digest
from bertaccum.errors import InputError
from bertaccum.files import sha256
from data_prep.manifest import label_names
from data_prep.tsv import read_tsv


def tsvs_to_train_on(folder: Path) -> list[Path]:
    """The train.tsv and the dev.tsv of a data folder.

    Raises:
      InputError: there is none.
    """
    tsvs = [folder / "train.tsv", folder / "dev.tsv"]
    for tsv in tsvs:
        if not tsv.exists():
            hint = "run `bertaccum prepare` first, or name a folder with `data`"
            raise InputError("there is no such file", hint, path=tsv)
    return tsvs


def tsvs_to_plan_with(config: PlanConfig) -> list[Path]:
    """Return the TSVs of `data`; none if it is the default folder and not prepared yet.

    Raises:
      InputError: the folder was named, or is there, and lacks one of them.
    """
    folder = Path(config.data)
    if config.data == PlanConfig.data and not folder.exists():
        return []
    return tsvs_to_train_on(folder)


def read_labels(folder: Path) -> Labels:
    """The classes of a data folder: those of its manifest, else those in its train.tsv.

    Raises:
      InputError: there is no usable train.tsv, or it holds fewer than two classes.
    """
    names = label_names(folder)
    if names is not None:
        return Labels([str(number) for number in range(len(names))], names)
    train = folder / "train.tsv"
    found = labels_of(train, read_tsv(train))
    values = sorted(set(found), key=lambda v: (0, int(v), v) if v.isdecimal() else (1, 0, v))
    if len(values) < 2:
        raise InputError(
            f"holds one class only ({values[0]})",
            "a classifier needs two or more; check the label column",
            path=train,
        )
    return Labels(values, values)


def read_inputs(
    source: ModelSource, labels: Labels, tsvs: list[Path], max_seq_length: int
) -> RunInputs:
    """Return a run's inputs, with digests of the data.

    Args:
      source: the model to start from.
      labels: the classes.
      tsvs: train.tsv and dev.tsv, or none.
      max_seq_length: number of tokens after which texts are truncated.

    Raises:
      InputError: a TSV cannot be read.
    """
    digests = [sha256(tsv) for tsv in tsvs]
    stores = [
        store_digest(tsv, digest, labels, source.vocabulary, max_seq_length)
        for tsv, digest in zip(tsvs, digests, strict=True)
    ]
    return RunInputs(source, labels, tsvs, digests, stores)
