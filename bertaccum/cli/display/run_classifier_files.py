"""The files that google-research/bert's run_classifier.py writes, with what is found here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from bertaccum.atomic import new_file
from bertaccum.errors import ConfigError

if TYPE_CHECKING:
    from bertaccum.inference.results import Prediction


@contextmanager
def results_file(named: str | None) -> Iterator[BinaryIO | None]:
    """A file to write to, which appears when all is in it, or not at all; none if none is named.

    Raises:
      ConfigError: it cannot be written, which is known before anything is computed for it.
    """
    if named is None:
        yield None
        return
    path = Path(named).absolute()
    # Under /dev a name, such as stdout, would be taken from what it belongs to.
    if not named or (path.exists() and not path.is_file()) or path.is_relative_to("/dev"):
        raise ConfigError(f"--results {named} is no file", "name one in a folder")
    with ExitStack() as stack:
        try:
            file = stack.enter_context(new_file(path.resolve()))  # A link stays one.
        except OSError as error:
            raise ConfigError(
                f"--results {named} cannot be written ({error.strerror})",
                "name a file in a folder that is there, and yours",
            ) from None
        yield file


def write_predictions(file: BinaryIO, found: Iterable[Prediction]) -> int:
    """Writes test_results.tsv: a line a text, the probability of each class between tabs.

    Returns:
      How many there were.
    """
    count = 0
    for one in found:
        line = "\t".join(str(p) for p in one.probabilities.values())
        file.write(f"{line}\n".encode())
        count += 1
    return count


def write_evaluation(file: BinaryIO, evaluated: dict[str, Any]) -> None:
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
    file.writelines(f"{key} = {value}\n".encode() for key, value in known.items())
