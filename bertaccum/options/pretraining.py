"""Options of `bertaccum pretrain`: those of training, with defaults for its job, and the texts."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertaccum.errors import ConfigError
from bertaccum.options import adapting
from bertaccum.options.commands import (
    DATA,
    TrainConfig,
    checkpoint_option,
    data_option,
    memory_option,
    model_option,
    optimization_option,
)
from bertaccum.options.document_names import DOCUMENTS
from bertaccum.options.fields import AUTO, MAX_EPOCHS, Numbers, delimiter_setting, encoding_setting
from bertaccum.options.task_names import MASKED_LM

JOINED, APART = "joined", "apart"
# The fields of `TrainConfig` without a meaning for pretraining.
_UNUSED = frozenset(
    {
        *("truncate", "head_fraction", "windows", "stride", "pool", "label_pieces", "keep_head"),
        *("class_weight", "label_smoothing", "calibrate", "thresholds"),
        *adapting.OPTIONS,
        *("teacher", "temperature", "teacher_weight", "unlabelled"),
    }
)
# The fields that `bertaccum pretrain` does not have.
HIDDEN = _UNUSED | {"data", "task"}


@dataclass(frozen=True)
class PretrainConfig(TrainConfig):
    """Options of `bertaccum pretrain`.

    The default batch and learning rate are those with which Devlin et al. 2019 pretrained BERT.
    """

    data: str = data_option("", "The value of `text`.", free=True)
    text: str | None = data_option(
        None,
        "Texts to read: files or folders, separated by commas. Plain text, CSV, TSV or JSON Lines,"
        " each also as .gz, Parquet, or a data folder of `bertaccum prepare`, whose train.tsv is"
        " read.",
        free=True,
        path=True,
    )
    text_column: str = data_option(
        "text", "Name or 1-based number of the column of texts in tables."
    )
    delimiter: str | None = delimiter_setting(DATA)
    encoding: str | None = encoding_setting(DATA)
    documents: str = data_option(
        AUTO,
        "End of a document in plain text. line: each line is a document; empty-line: an empty"
        " line; auto: an empty line in files that have one between other lines.",
        choices=DOCUMENTS,
    )
    pack: str = data_option(
        JOINED,
        "How documents fill sequences of `max_seq_length` tokens. joined: one after the other,"
        " separated by [SEP]; apart: each in its own sequences, the last of which is shorter.",
        choices=(JOINED, APART),
    )
    dev_fraction: float = data_option(
        0.01,
        "Fraction of the documents that are not trained on, for the perplexity, in at most 2,000"
        " sequences. It is rounded to one document in every N.",
        numbers=Numbers(0, 0.5, exclusive=True),
    )
    whole_words: bool = data_option(
        False, "Mask all pieces of a word, or none, instead of single pieces."
    )
    add_words: str | None = model_option(
        None,
        "Words to add to the vocabulary: a file with one per line, or the number of the most"
        " frequent words in the texts that have several pieces. The embedding of a new word is the"
        " mean of its pieces. [default: none]",
        path=True,
    )
    task: str | None = data_option(MASKED_LM, "Kind of task.", choices=(MASKED_LM,))
    target_batch: int = memory_option(
        256, "Number of sequences per optimizer update.", numbers=Numbers(1)
    )
    epochs: float = optimization_option(
        1.0, "Number of passes over the texts.", numbers=Numbers(0, MAX_EPOCHS, exclusive=True)
    )
    max_tokens: int | None = optimization_option(
        None,
        "Maximum number of tokens to read, rounded up to whole updates, if that is less than"
        " `epochs`. The learning rate falls to 0 at this end. [default: no limit]",
        numbers=Numbers(1),
    )
    learning_rate: float | None = optimization_option(
        1e-4, "Peak learning rate.", numbers=Numbers(0, exclusive=True, real=True)
    )
    best_by: str | None = checkpoint_option(
        None,
        "Metric on held-back texts that selects the best checkpoint. [default: perplexity]",
        choices=("perplexity", "loss", "accuracy"),
    )

    @property
    def apart(self) -> bool:
        """Whether a sequence never contains text of two documents."""
        return self.pack == APART

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", self.text or "")
        super().__post_init__()
        for name in sorted(_UNUSED):
            if (value := getattr(self, name)) != getattr(TrainConfig, name, None):
                what = f"`{name}` {value} has no effect on pretraining"
                raise ConfigError(what, "omit it")


def text_paths(text: str) -> list[str]:
    """Return the paths that the option `text` names; a name that exists is a single path."""
    with contextlib.suppress(OSError):  # A list may be longer than a path can be.
        if Path(text).exists():
            return [text] if text else []
    return [path for part in text.split(",") if (path := part.strip())]


def hidden_options(kind: type[TrainConfig]) -> frozenset[str]:
    """Return the options of a class that its command does not have."""
    return HIDDEN if issubclass(kind, PretrainConfig) else frozenset()


def train_config(values: dict[str, Any]) -> TrainConfig:
    """Return the options of a run from its recorded values."""
    return (PretrainConfig if values.get("task") == MASKED_LM else TrainConfig)(**values)
