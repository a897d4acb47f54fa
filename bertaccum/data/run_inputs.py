"""The inputs that determine a run's updates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertaccum.bert.model_source import KeptHead, ModelSource
from bertaccum.bert.vocabulary import Vocabulary
from bertaccum.tasks.labels import Labels


@dataclass(frozen=True)
class RunInputs:
    """The inputs of a run: the model to start from, the task and the data.

    Args:
      source: Dimensions, vocabulary and pretrained weights; the vocabulary is empty if unknown.
      labels: Labels of the data.
      tsvs: Paths of train.tsv and dev.tsv; empty if the data have not been prepared yet.
      tsv_digests: SHA-256 of each TSV.
      store_digests: Digest that names the token store of each TSV.
      head: How the checkpoint's head becomes the model's; None for a random head.
    """

    source: ModelSource
    labels: Labels
    tsvs: list[Path]
    tsv_digests: list[str]
    store_digests: list[str]
    head: KeptHead | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of a run; only plans may lack one."""
        assert self.source.vocabulary is not None
        return self.source.vocabulary
