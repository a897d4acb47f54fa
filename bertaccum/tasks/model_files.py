"""The files beside a saved model's weights: dimensions, vocabulary, labels and decoding."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TypeVar

from bertaccum.bert.encoder_config import EncoderConfig, read_bert_config, write_bert_config
from bertaccum.bert.tokenizer_files import WORDS, read_tokenizer, write_tokenizer
from bertaccum.bert.vocabulary import Vocabulary
from bertaccum.errors import InputError
from bertaccum.system.atomic import write_text
from bertaccum.system.files import json_text, read_mapping, read_object
from bertaccum.tasks.labels import Labels
from bertaccum.tasks.task import PLAIN, Decoding

_Kind = TypeVar("_Kind", Labels, Decoding)
# Name of the file with the scores that a checkpoint had when it was saved.
EVALUATION = "evaluation.json"
# Absent if nothing was fitted on dev.tsv.
_DECODING = "decoding.json"


def saved_update(best: Path) -> int | None:
    """Return the update at which a best checkpoint was saved, or None if unknown."""
    return (read_mapping(best / EVALUATION) or {}).get("update")


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """The information that a model needs in addition to its weights."""

    encoder: EncoderConfig
    vocabulary: Vocabulary  # Vocabulary of the model, with its cleaning of texts.
    labels: Labels
    decoding: Decoding = PLAIN  # How logits become predictions.

    def write(self, folder: Path) -> None:
        """Write one file for each field to `folder`."""
        write_bert_config(folder / "bert_config.json", self.encoder)
        write_tokenizer(folder, self.vocabulary)
        write_text(folder / "labels.json", json_text(dataclasses.asdict(self.labels)))
        if self.decoding != PLAIN:
            self.write_decoding(folder)

    def write_decoding(self, folder: Path) -> None:
        """Write only `decoding` to `folder`."""
        write_text(folder / _DECODING, json_text(dataclasses.asdict(self.decoding)))

    @staticmethod
    def read(folder: Path) -> ModelFiles:
        """Return the contents of a folder that `write` has written to."""
        labels = _read(Labels, folder / "labels.json")
        fitted = (folder / _DECODING).exists()
        decoding = _read(Decoding, folder / _DECODING) if fitted else PLAIN
        if decoding.thresholds and len(decoding.thresholds) != len(labels.values):
            counts = f"{len(decoding.thresholds)} thresholds for {len(labels.values)} labels"
            raise _damaged(folder / _DECODING, counts)
        encoder = read_bert_config(folder / "bert_config.json")
        vocabulary = read_tokenizer(folder / WORDS)
        if len(vocabulary) != encoder.vocab_size:
            raise InputError(
                f"its {WORDS} has {len(vocabulary)} entries, expected {encoder.vocab_size}",
                "train the model again",
                path=folder,
            )
        return ModelFiles(encoder, vocabulary, labels, decoding)


def _read(kind: type[_Kind], path: Path) -> _Kind:
    try:
        return kind(**read_object(path))
    except (ValueError, TypeError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, why: object) -> InputError:
    return InputError(f"is damaged ({why})", "train the model again", path=path)
