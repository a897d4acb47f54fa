"""Result files in the formats of run_classifier.py in google-research/bert and of GLUE."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

from bertaccum.errors import ConfigError
from bertaccum.inference.results import Prediction
from bertaccum.options.metrics import METRICS
from bertaccum.system.atomic import new_file
from bertaccum.system.files import check_writable
from data_prep.tables.manifest import manifest_of
from data_prep.tables.words import word_spans


def check_results(named: str | None, read: str | None) -> None:
    """Raise ConfigError if the file of `--results`, if any, is read too, or cannot be written."""
    if named is None:
        return
    check_writable(Path(named), "--results")
    if read is not None and Path(read).resolve() == Path(named).resolve():
        what = f"--results {named} would replace the file that --file names"
        raise ConfigError(what, "choose another file for --results")


def results_file(named: str | None) -> AbstractContextManager[BinaryIO | None]:
    """Return a context with a file, which appears when it is complete; None if `named` is None."""
    # Write to the target of a symbolic link, so that the link remains.
    return nullcontext() if named is None else new_file(Path(named).resolve())


def write_results(file: BinaryIO, predictions: Iterable[Prediction], table: str | None) -> int:
    """Write predictions, one line per text, and return their number.

    If `table` is a test set of GLUE that `prepare` wrote, the file is as GLUE accepts it: columns
    `index` and `prediction`, with a header. Tags are written as a CoNLL file. Otherwise it is a
    test_results.tsv: tab-separated probabilities of the classes or, for a regression, the predicted
    number.
    """
    labels = _glue_labels(table)
    if labels is not None:
        file.write(b"index\tprediction\n")
    count = 0
    for one in predictions:
        if one.masks is not None:
            what = "the words of masked tokens have no format for `results`"
            raise ConfigError(what, "omit `results`, or print them with --json")
        if labels is not None:
            lines = f"{count}\t{_answer(one, labels)}\n"
        else:
            lines = f"{_probabilities(one)}\n" if one.tags is None else _conll(one)
        file.write(lines.encode())
        count += 1
    return count


def _conll(one: Prediction) -> str:
    """Return the words of a text with their tags, a line each, and an empty line."""
    words = [one.text[start:end] for start, end in word_spans(one.text)]
    # Without a scheme, words that were not read have no tag.
    lines = (f"{word}\t{tag}\n" for word, tag in zip_longest(words, one.tags or [], fillvalue="_"))
    return "".join([*lines, "\n"])


def _glue_labels(table: str | None) -> dict[str, str] | None:
    """Return GLUE's labels if a table is a test set of GLUE that `prepare` wrote, else None."""
    if table is None:
        return None
    manifest = manifest_of(Path(table)) or {}
    known = manifest.get("glue")
    if not known or Path(table).stem not in known["submission"]:
        return None
    return dict(zip(manifest["labels"], known["labels"], strict=True))


def _probabilities(one: Prediction) -> str:
    """Return the line of a prediction in test_results.tsv."""
    columns = [one.score] if one.probabilities is None else one.probabilities.values()
    return "\t".join(map(str, columns))


def _answer(one: Prediction, labels: dict[str, str]) -> str:
    """Return a prediction in GLUE's words, given the result of `_glue_labels`."""
    if (one.label if labels else one.score) is None:
        wanted = "one class" if labels else "a number"
        what = f"GLUE expects {wanted} for each text of this test set, which the run does not give"
        raise ConfigError(what, "use a run that was trained on the data of the test set")
    if not labels:  # Only a regression has none.
        return f"{one.score:.3f}"
    if one.label not in labels:
        what = f"GLUE does not know the run's class {str(one.label)!r}"
        raise ConfigError(what, f"train with the classes of the test set: {', '.join(labels)}")
    return labels[one.label]


def write_evaluation(file: BinaryIO, evaluated: dict[str, Any]) -> None:
    """Write eval_results.txt: lines `key = value`, with the same keys and order as run_classifier.

    In run_classifier, `loss` is a mean of batch means. In this file it equals `eval_loss`, the mean
    over all examples. `update`, if known, becomes `global_step`.
    """
    # run_classifier knows only the accuracy.
    names = ["accuracy"] if "accuracy" in evaluated else METRICS
    values = {
        **{f"eval_{name}": evaluated.get(name) for name in names},
        "eval_loss": evaluated["loss"],
        "global_step": evaluated["update"],
        "loss": evaluated["loss"],
    }
    known = {key: value for key, value in values.items() if value is not None}
    file.writelines(f"{key} = {value}\n".encode() for key, value in known.items())
