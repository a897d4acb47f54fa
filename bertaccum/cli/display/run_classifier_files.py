"""Result files in the format of run_classifier.py in google-research/bert."""

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
    """Yield a file to write to, or None if `named` is None; the file appears only when complete.

    Raises:
      ConfigError: The file cannot be written. The error is raised before any computation.
    """
    if named is None:
        yield None
        return
    path = Path(named).absolute()
    # Renaming a file onto /dev/stdout would replace the device.
    if not named or (path.exists() and not path.is_file()) or path.is_relative_to("/dev"):
        raise ConfigError(
            f"--results {named} is not a regular file", "choose a file in an existing folder"
        )
    with ExitStack() as stack:
        try:
            # Write to the target of a symbolic link, so that the link remains.
            file = stack.enter_context(new_file(path.resolve()))
        except OSError as error:
            raise ConfigError(
                f"--results {named} cannot be written ({error.strerror})",
                "choose a file in an existing, writable folder",
            ) from None
        yield file


def write_predictions(file: BinaryIO, found: Iterable[Prediction]) -> int:
    """Write test_results.tsv: one line per text, with tab-separated probabilities of the classes.

    Returns:
      The number of predictions.
    """
    count = 0
    for one in found:
        line = "\t".join(str(p) for p in one.probabilities.values())
        file.write(f"{line}\n".encode())
        count += 1
    return count


def write_evaluation(file: BinaryIO, evaluated: dict[str, Any]) -> None:
    """Write eval_results.txt: lines `key = value`, with the same keys and order as run_classifier.

    In run_classifier, `loss` is a mean of batch means. In this file it equals `eval_loss`, the mean
    over all examples.

    Args:
      file: The file to write to.
      evaluated: The fields of the result of `bertaccum.evaluate`. `update`, if known, becomes
        `global_step`.
    """
    values = {
        "eval_accuracy": evaluated["accuracy"],
        "eval_loss": evaluated["loss"],
        "global_step": evaluated["update"],
        "loss": evaluated["loss"],
    }
    known = {key: value for key, value in values.items() if value is not None}
    file.writelines(f"{key} = {value}\n".encode() for key, value in known.items())
