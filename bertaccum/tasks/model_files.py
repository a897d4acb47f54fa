"""The files beside a saved classifier's weights: dimensions, vocabulary and classes."""

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

# Name of the file with the scores that a checkpoint had when it was saved.
EVALUATION = "evaluation.json"


@dataclasses.dataclass(frozen=True)
class ModelFiles:
    """The information that a classifier needs in addition to its weights.

    Args:
      encoder: Dimensions of the encoder.
      vocabulary: Entries of the vocabulary, in the order of their IDs.
      labels: Classes.
    """

    encoder: EncoderConfig
    vocabulary: list[str]
    labels: Labels

    def write(self, folder: Path) -> None:
        """Write one file for each field to `folder`."""
        write_bert_config(folder / "bert_config.json", self.encoder)
        write_text(folder / "vocab.txt", "\n".join(self.vocabulary) + "\n")
        write_text(folder / "labels.json", json_text(dataclasses.asdict(self.labels)))

    @staticmethod
    def read(folder: Path) -> ModelFiles:
        """Return the contents of a folder that `write` has written to.

        Raises:
          InputError: A file is missing or damaged.
        """
        path = folder / "labels.json"
        try:
            labels = Labels(**json.loads(read_text(path)))
            if not all(isinstance(text, str) for text in [*labels.values, *labels.names]):
                raise ValueError("a label is not a string")
            if len(labels.values) != len(labels.names):
                raise ValueError(f"{len(labels.values)} labels but {len(labels.names)} names")
        except (ValueError, TypeError) as error:
            raise InputError(f"is damaged ({error})", "train the model again", path=path) from None
        encoder = read_bert_config(folder / "bert_config.json")
        vocabulary = read_vocabulary(folder / "vocab.txt")
        if len(vocabulary) != encoder.vocab_size:
            raise InputError(
                f"its vocab.txt has {len(vocabulary)} entries, expected {encoder.vocab_size}",
                "train the model again",
                path=folder,
            )
        return ModelFiles(encoder, vocabulary, labels)
