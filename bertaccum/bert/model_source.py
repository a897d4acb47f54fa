"""Which encoder, weights and vocabulary a configuration means. No tensorflow here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertaccum.bert.encoder_config import WEIGHTS, EncoderConfig

RUN_PREFIX = "model.ckpt"


@dataclass(frozen=True)
class ModelSource:
    """Everything that decides the untrained model.

    Args:
      name: what to call it in reports.
      encoder: the encoder's dimensions.
      vocabulary: the entries, by id.
      checkpoint: prefix of the pretrained weights, or their `model.safetensors`; None for
        random ones.
      has_pooler: whether the pretrained weights include the pooler's.
      labels: the classes of the checkpoint's head, as `labels.json` has them; None without one.
    """

    name: str
    encoder: EncoderConfig
    vocabulary: list[str]
    checkpoint: Path | None
    has_pooler: bool = True
    labels: dict[str, Any] | None = None

    @property
    def of_run(self) -> bool:
        """Whether the weights are the best checkpoint of a run of `bertaccum train`."""
        return self.checkpoint is not None and self.checkpoint.name == RUN_PREFIX

    @property
    def telling_file(self) -> Path | None:
        """The file that is another one if the pretrained weights are."""
        if self.checkpoint is None or self.checkpoint.name == WEIGHTS:
            return self.checkpoint
        # The index has checksums of all weights.
        return self.checkpoint.with_name(f"{self.checkpoint.name}.index")
