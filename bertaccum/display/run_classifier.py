"""The files that google-research/bert's run_classifier.py writes, with what is found here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bertaccum.errors import ConfigError
from bertaccum.files import beside

if TYPE_CHECKING:
    from bertaccum.training.predicting import Prediction


@contextmanager
def results_file(path: Path) -> Iterator[IO[str]]:
    """A file to write to, which appears as `path` when all is in it, or not at all.

    Raises:
      ConfigError: it cannot be written, which is known before anything is computed for it.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"--results {path} is no file", "name one in a folder")
    temporary = beside(path)
    try:
        file = temporary.open("x", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--results {path} cannot be written ({error.strerror})",
            "name a file in a folder that is there, and yours",
        ) from None
    try:
        with file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_predictions(file: IO[str], found: Iterable[Prediction]) -> int:
    """Writes test_results.tsv: a line a text, the probability of each class between tabs.

    Returns:
      How many there were.
    """
    count = 0
    for one in found:
        file.write("\t".join(str(p) for p in one.probabilities.values()) + "\n")
        count += 1
    return count


def write_evaluation(file: IO[str], evaluated: dict[str, Any]) -> None:
    """Writes eval_results.txt: the same keys in the same order, `key = value`.

    Its `loss` is a mean of the batches' means; here it is that of the examples, as `eval_loss`.

    Args:
      file: to write to.
      evaluated: what `bertaccum.evaluate` returns. Its `update`, if known, is the `global_step`.
    """
    values = {
        "eval_accuracy": evaluated["accuracy"],
        "eval_loss": evaluated["loss"],
        "global_step": evaluated["update"],
        "loss": evaluated["loss"],
    }
    known = {key: value for key, value in values.items() if value is not None}
    file.writelines(f"{key} = {value}\n" for key, value in known.items())
