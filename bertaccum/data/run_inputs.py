"""The inputs that determine a run's updates: the model to start from, the task and the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bertaccum.bert.model_source import HeadMapping, ModelSource
from bertaccum.bert.tokenization import MAX_TAGS, SHORTEST_PAIR, Tokenization, tokenization_of
from bertaccum.bert.vocabulary import Vocabulary
from bertaccum.data.token_store import corpus_digest, store_digest
from bertaccum.errors import ConfigError, InputError
from bertaccum.options.commands import PlanConfig, StepConfig
from bertaccum.options.pretraining import PretrainConfig, text_paths
from bertaccum.options.task_names import MASKED_LM, TOKEN_CLASSIFICATION
from bertaccum.system.files import sha256
from bertaccum.system.progress import Note, Progress, ignore_note
from bertaccum.tasks.head_mapping import head_mapping
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.task import Task
from data_prep.tables.columns import ReadOptions
from data_prep.tables.corpus import Corpus, find_corpus
from data_prep.tables.manifest import TOOL, is_changed, is_prepared
from data_prep.tables.table import read_rows


@dataclass(frozen=True)
class Unlabelled:
    """A file of texts without labels."""

    path: Path
    digest: str  # SHA-256 of the file.
    store_digest: str  # Digest that names its token store.


@dataclass(frozen=True)
class Teacher:
    """A trained classifier from which a model learns, and where its logits are."""

    # Names of its logits in the cache: of train.tsv and, if there are any, of unlabeled texts.
    digests: list[str]
    # Options that find the teacher; None if its logits were computed when the run began.
    config: StepConfig | None = None
    # How its outputs become those of the model; None without `config`.
    mapping: HeadMapping | None = None
    pinned: str | None = None  # Its name and commit on the Hugging Face Hub, if it is there.
    weights_digest: str | None = None  # Digest of its weights; None without `config`.


@dataclass(frozen=True)
class RunInputs:
    """The inputs of a run: the model to start from, the task and the data."""

    # Dimensions, vocabulary and pretrained weights; the vocabulary is empty if unknown.
    source: ModelSource
    labels: Labels
    tsvs: list[Path]  # Paths of train.tsv and dev.tsv; empty if the data have not been prepared yet
    tsv_digests: list[str]  # SHA-256 of each TSV.
    store_digests: list[str]  # Digest that names the token store of each TSV.
    # How the checkpoint's head becomes the model's; None for a random head.
    head: HeadMapping | None = None
    corpus: Corpus | None = None  # Texts to pretrain on; None for other tasks.
    teacher: Teacher | None = None  # The classifier from which the model learns; None without one.
    unlabelled: Unlabelled | None = None  # Texts that it learns from the teacher alone.

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of a run; only plans may lack one."""
        assert self.source.vocabulary is not None
        return self.source.vocabulary


def tokenizations(vocabulary: Vocabulary, config: StepConfig) -> list[Tokenization]:
    """Return the tokenizations of train.tsv and dev.tsv."""
    return [tokenization_of(vocabulary, config, training) for training in (True, False)]


def pretraining_inputs(
    source: ModelSource, corpus: Corpus, config: PretrainConfig, progress: Progress
) -> RunInputs:
    """Return the inputs of a run that pretrains a model on texts."""
    assert source.vocabulary is not None
    labels = Labels([], [], task=MASKED_LM)
    tokenization = tokenization_of(source.vocabulary, config)
    digest = corpus_digest(corpus, tokenization, progress, config.apart, config.dev_fraction)
    head = head_mapping(source, labels, keep=False)
    return RunInputs(source, labels, [], [], [digest], head, corpus)


def corpus_of(config: PretrainConfig, note: Note = ignore_note) -> Corpus:
    """Return the texts that the options of a pretraining run name."""
    if not (paths := text_paths(config.data)):
        raise ConfigError("`text` is missing", "name files or folders with texts")
    reading = ReadOptions(
        text_column=config.text_column,
        label_column=None,
        delimiter=config.delimiter,
        encoding=config.encoding,
    )
    return find_corpus([Path(path) for path in paths], reading, config.documents, note)


def tsvs_to_train_on(folder: Path) -> list[Path]:
    """Return the paths of train.tsv and dev.tsv in a data folder."""
    if folder.is_file():
        raise InputError(
            "is a file, not a data folder",
            f"convert it with bertaccum prepare `source` csv `train_file` {folder}",
            path=folder,
        )
    tsvs = [folder / "train.tsv", folder / "dev.tsv"]
    for tsv in tsvs:
        if not tsv.exists():
            hint = "run `bertaccum prepare` first, or choose another folder with `data`"
            raise InputError("there is no such file", hint, path=tsv)
    return tsvs


def note_reading(tsvs: Iterable[Path], note: Note) -> None:
    """Note how TSVs are read that `prepare` did not write or that were changed since."""
    for tsv in tsvs:
        if not is_prepared(tsv):
            for _ in read_rows(tsv, ReadOptions(weight_if_named=True), note):
                pass
        elif is_changed(tsv):
            note(f"{tsv}: was changed since {TOOL} wrote it; quotes are read as text")


def tsvs_to_plan_with(config: PlanConfig) -> list[Path]:
    """Return the TSVs in the folder `data`; none if it is the default and does not exist yet."""
    folder = Path(config.data)
    if config.data == PlanConfig.data and not folder.exists():
        return []
    return tsvs_to_train_on(folder)


def read_inputs(source: ModelSource, task: Task, tsvs: list[Path], config: StepConfig) -> RunInputs:
    """Return a run's inputs, including digests of the data.

    Raises:
      ConfigError: The option `windows` or `max_seq_length` does not suit the data.
    """
    if task.labels.pairs and config.windows > 1:
        raise ConfigError(
            f"`windows` {config.windows} needs single texts, but the data have pairs",
            "omit `windows`; pairs are truncated to `max_seq_length`",
        )
    if task.labels.pairs and config.max_seq_length < SHORTEST_PAIR:
        raise ConfigError(
            f"`max_seq_length` {config.max_seq_length} leaves no room for both texts of a pair",
            f"use at least {SHORTEST_PAIR}: [CLS], [SEP] twice, and a token of each text",
        )
    if task.labels.task == TOKEN_CLASSIFICATION and task.labels.outputs > MAX_TAGS:
        what = f"the data have {task.labels.outputs:,} tags, but a model can have {MAX_TAGS:,}"
        raise ConfigError(what, "prepare them with fewer tags")
    digests, stores = [sha256(tsv) for tsv in tsvs], []
    if source.vocabulary:
        config = dataclasses.replace(config, task=task.labels.task)
        stores = [
            store_digest(tsv, digest, task.labels, tokenization)
            for tsv, digest, tokenization in zip(
                tsvs, digests, tokenizations(source.vocabulary, config), strict=False
            )
        ]
    head = head_mapping(source, task.labels, config.keep_head)
    return RunInputs(source, task.labels, tsvs, digests, stores, head)
