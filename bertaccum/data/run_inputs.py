"""The inputs that determine a run's updates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertaccum.bert.model_source import KeptHead, ModelSource
from bertaccum.tasks.labels import Labels


@dataclass(frozen=True)
class RunInputs:
    """The inputs of a run: the model to start from, the task and the data."""

    # Dimensions, vocabulary and pretrained weights; the vocabulary is empty if unknown.
    source: ModelSource
    labels: Labels
    tsvs: list[Path]  # Paths of train.tsv and dev.tsv; empty if the data have not been prepared yet
    tsv_digests: list[str]  # SHA-256 of each TSV.
    store_digests: list[str]  # Digest that names the token store of each TSV.
    # How the checkpoint's head becomes the model's; None for a random head.
    head: KeptHead | None = None
