"""The encoder, weights and vocabulary to start from. This module does not import TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertaccum.bert.encoder_config import TORCH_WEIGHTS, WEIGHTS, EncoderConfig
from bertaccum.bert.vocabulary import Vocabulary

RUN_PREFIX = "model.ckpt"


@dataclass(frozen=True)
class FineTunedHead:
    """The head of a classifier that another tool fine-tuned.

    Args:
      outputs: Number of outputs; None if it is unknown until the weights are read.
      names: Name of the class of each output; empty if they have no names.
      problem_type: Kind of task, as transformers names it; None if it is unknown.
    """

    outputs: int | None = None
    names: list[str] = field(default_factory=list)
    problem_type: str | None = None


@dataclass(frozen=True)
class KeptHead:
    """How the weights of a checkpoint's head become ours.

    Args:
      rows: For each of our outputs, the number of the checkpoint's output.
      mean: Number to subtract from the checkpoint's outputs.
      std: Number to divide them by.
    """

    rows: list[int]
    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True)
class ModelSource:
    """Everything that determines a model before training.

    Args:
      name: Name of the model in reports.
      encoder: Dimensions of the encoder.
      vocabulary: Vocabulary of the model; None if it is unknown.
      checkpoint: Prefix of the files of the pretrained weights, or the path of their
        `model.safetensors` or `pytorch_model.bin`; None for random weights.
      has_pooler: Whether the pretrained weights include a pooler.
      labels: Labels of the run, as in its `labels.json`; None if the weights are not a run's.
      head: Head to take from a checkpoint that is not a run's; None for a random head.
    """

    name: str
    encoder: EncoderConfig
    vocabulary: Vocabulary | None
    checkpoint: Path | None
    has_pooler: bool = True
    labels: dict[str, Any] | None = None
    head: FineTunedHead | None = None

    @property
    def of_run(self) -> bool:
        """Whether the weights are the best checkpoint of a `bertaccum train` run."""
        return self.checkpoint is not None and self.checkpoint.name == RUN_PREFIX

    @property
    def of_huggingface(self) -> bool:
        """Whether the weights are in one of Hugging Face's formats."""
        return self.checkpoint is not None and self.checkpoint.name in (WEIGHTS, TORCH_WEIGHTS)

    @property
    def telling_file(self) -> Path | None:
        """The file whose contents identify the pretrained weights; None for random weights."""
        if self.checkpoint is None or self.of_huggingface:
            return self.checkpoint
        # The index contains checksums of all weights.
        return self.checkpoint.with_name(f"{self.checkpoint.name}.index")
