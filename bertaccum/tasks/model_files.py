"""A classifier on the disk: its weights, dimensions, vocabulary and classes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from bertaccum.atomic import write_text
from bertaccum.bert.bert_config_file import read_bert_config, write_bert_config
from bertaccum.bert.encoder_config import EncoderConfig
from bertaccum.bert.vocabulary import read_vocabulary
from bertaccum.data.labels import Labels
from bertaccum.errors import InputError
from bertaccum.files import json_text, read_text

# How good the checkpoint was when it was saved.
EVALUATION = "evaluation.json"


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """What a folder of weights needs beside them to be used: dimensions, words, classes."""

    encoder: EncoderConfig
    vocabulary: list[str]
    labels: Labels

    def write(self, folder: Path) -> None:
        write_bert_config(folder / "bert_config.json", self.encoder)
        write_text(folder / "vocab.txt", "\n".join(self.vocabulary) + "\n")
        write_text(folder / "labels.json", json_text(dataclasses.asdict(self.labels)))

    @staticmethod
    def read(folder: Path) -> ModelFiles:
        """Reads what `write` wrote.

        Raises:
          InputError: a file is missing or damaged.
        """
        path = folder / "labels.json"
        try:
            labels = Labels(**json.loads(read_text(path)))
            if not all(isinstance(text, str) for text in [*labels.values, *labels.names]):
                raise ValueError("a label is not text")
            if len(labels.values) != len(labels.names):
                raise ValueError(f"{len(labels.values)} labels, {len(labels.names)} names")
        except (ValueError, TypeError) as error:
            raise InputError(f"is damaged ({error})", "train again", path=path) from None
        encoder = read_bert_config(folder / "bert_config.json")
        vocabulary = read_vocabulary(folder / "vocab.txt")
        if len(vocabulary) != encoder.vocab_size:
            raise InputError(
                f"its vocab.txt has {len(vocabulary)} entries, its model {encoder.vocab_size}",
                "train again",
                path=folder,
            )
        return ModelFiles(encoder, vocabulary, labels)
