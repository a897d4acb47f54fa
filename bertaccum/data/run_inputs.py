"""The files that a run's updates follow from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from bertaccum.bert.model_source import ModelSource
from bertaccum.data.labels import Labels


@dataclass(frozen=True)
class RunInputs:
    """A model to start from, the classes, and the data.

    Args:
      source: dimensions, vocabulary and pretrained weights; the vocabulary is empty if unknown.
      labels: the classes.
      tsvs: train.tsv and dev.tsv; empty if there are no prepared data yet.
      tsv_digests: SHA-256 of each TSV.
      store_digests: name of each TSV's token store.
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
