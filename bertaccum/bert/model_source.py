"""The encoder, weights and vocabulary to start from. This module does not import TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertaccum.bert.encoder_config import WEIGHTS, EncoderConfig
from bertaccum.bert.vocabulary import Vocabulary

RUN_PREFIX = "model.ckpt"


@dataclass(frozen=True)
class ModelSource:
    """Everything that determines a model before training.

    Args:
      name: Name of the model in reports.
      encoder: Dimensions of the encoder.
      vocabulary: Vocabulary of the model; None if it is unknown.
      checkpoint: Prefix of the files of the pretrained weights, or the path of their
        `model.safetensors`; None for random weights.
      has_pooler: Whether the pretrained weights include a pooler.
      labels: Classes of the checkpoint's head, as in `labels.json`; None if it has no head.
    """

    name: str
    encoder: EncoderConfig
    vocabulary: Vocabulary | None
    checkpoint: Path | None
    has_pooler: bool = True
    labels: dict[str, Any] | None = None

    @property
    def of_run(self) -> bool:
        """Whether the weights are the best checkpoint of a `bertaccum train` run."""
        return self.checkpoint is not None and self.checkpoint.name == RUN_PREFIX

    @property
    def telling_file(self) -> Path | None:
        """The file whose contents identify the pretrained weights; None for random weights."""
        if self.checkpoint is None or self.checkpoint.name == WEIGHTS:
            return self.checkpoint
        # The index contains checksums of all weights.
        return self.checkpoint.with_name(f"{self.checkpoint.name}.index")
