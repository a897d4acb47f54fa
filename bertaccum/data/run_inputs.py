"""The inputs that determine a run's updates."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from bertaccum.bert.model_source import ModelSource
from bertaccum.data.labels import Labels


@dataclass(frozen=True)
class RunInputs:
    """The inputs of a run: the model to start from, the classes and the data.

    Args:
      source: Dimensions, vocabulary and pretrained weights; the vocabulary is empty if unknown.
      labels: Classes.
      tsvs: Paths of train.tsv and dev.tsv; empty if the data have not been prepared yet.
      tsv_digests: SHA-256 of each TSV.
      store_digests: Digest that names the token store of each TSV.
    """

    source: ModelSource
    labels: Labels
    tsvs: list[Path]
    tsv_digests: list[str]
    store_digests: list[str]

    @property
    def takes_head(self) -> bool:
        """Whether the pretrained weights include a head for exactly these classes."""
        return self.source.labels == dataclasses.asdict(self.labels)
