"""What inference returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prediction:
    """What a model says of a text.

    Args:
      text: as it was given.
      label: the most probable class' name.
      probabilities: of each class, by name, in the order of the labels.
    """

    text: str
    label: str
    probabilities: dict[str, float]
