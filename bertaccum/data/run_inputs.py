"""The inputs that determine a run's updates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertaccum.bert.model_source import ModelSource
from bertaccum.tasks.labels import Labels


@dataclass(frozen=True)
class RunInputs:
    """The inputs of a run: the model to start from, the task and the data.

    Args:
      source: Dimensions, vocabulary and pretrained weights; the vocabulary is empty if unknown.
      labels: Labels of the data.
      outputs: Number of outputs that the model needs for them.
      tsvs: Paths of train.tsv and dev.tsv; empty if the data have not been prepared yet.
      tsv_digests: SHA-256 of each TSV.
      store_digests: Digest that names the token store of each TSV.
    """

    source: ModelSource
    labels: Labels
    outputs: int
    tsvs: list[Path]
    tsv_digests: list[str]
    store_digests: list[str]

    @property
    def takes_head(self) -> bool:
        """Whether the pretrained weights include a head for exactly these labels."""
        return self.source.labels is not None and Labels(**self.source.labels) == self.labels
