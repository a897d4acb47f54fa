"""Predictions in the file that google-research/bert's run_classifier.py writes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from bertaccum.errors import ConfigError
from bertaccum.files import beside

if TYPE_CHECKING:
    from bertaccum.training.predicting import Prediction


def write_results(path: Path, found: Iterable[Prediction]) -> int:
    """Writes a line a text, the probability of each class between tabs, as `--do_predict` does.

    The file appears when all is predicted, or not at all.

    Returns:
      How many there were.

    Raises:
      ConfigError: the file cannot be written.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"--results {path} cannot be written", "name a file in a folder")
    temporary, count = beside(path), 0
    try:
        with temporary.open("x", encoding="utf-8") as file:
            for one in found:
                file.write("\t".join(str(p) for p in one.probabilities.values()) + "\n")
                count += 1
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return count
