"""Notes of `bertaccum prepare` on problems in the data, derived from the manifest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# In a split with fewer examples, each one changes the accuracy by more than 3 percentage points.
_FEW = 30
_NAMED_CLASSES = 5


def notes(manifest: dict[str, Any]) -> list[str]:
    """Return one line for each problem in the data that a user should know about.

    Args:
      manifest: The manifest of the data folder. Those written by earlier versions lack `findings`.
    """
    found = manifest.get("findings")
    lines = [] if found is None else [*_duplicates(found, manifest["options"]), *_oddities(found)]
    return [f"note: {line}" for line in [*lines, *_absent(manifest), *_small(manifest)]]


def _duplicates(found: dict[str, Any], options: dict[str, Any]) -> Iterator[str]:
    drop, shared, repeated = options["drop_duplicates"], found["also_in_test"], found["repeated"]
    if shared["texts"]:
        done = (
            "kept in train.tsv and dev.tsv; --drop-duplicates leaves them out"
            if drop is False
            else "left out of train.tsv and dev.tsv; --no-drop-duplicates keeps them"
        )
        texts = _counted(shared["texts"], "text of the test set is", "texts of the test set are")
        yield f"{texts} also in the training set ({_rows(shared['rows'])}): {done}"
    if repeated["texts"]:
        done = (
            "only the first row of each is kept"
            if drop
            else "all rows with the same text are in one split; --drop-duplicates keeps only the"
            " first"
        )
        texts = _counted(repeated["texts"], "text occurs", "texts occur")
        yield f"{texts} more than once in the training set ({_rows(repeated['rows'])}): {done}"
    yield from _conflicts(found["conflicting"])


def _conflicts(conflicting: dict[str, Any]) -> Iterator[str]:
    if not conflicting["texts"]:
        return
    rows = [" and ".join(f"{row:,}" for row in rows) for rows in conflicting["rows"]]
    more = "; ..." if conflicting["texts"] > len(rows) else ""
    yield (
        f"{_counted(conflicting['texts'], 'text has', 'texts have')} more than one label in the"
        f" training set (rows {'; '.join(rows)}{more}): correct the labels or delete the rows"
    )


def _oddities(found: dict[str, Any]) -> Iterator[str]:
    for part, empty in found["empty"].items():
        yield (
            f"{_rows_have(empty['rows'], part)} an empty text (first: row {empty['first_row']:,})"
        )
    for part, labels in found["missing_labels"].items():
        for label, count in labels.items():
            yield (
                f"{_rows_have(count, part)} the label {label!r}; if it stands for a missing value,"
                f" delete {'the row' if count == 1 else 'the rows'}"
            )


def _rows_have(count: int, part: str) -> str:
    return _counted(count, f"row of the {part} set has", f"rows of the {part} set have")


def _rows(count: int) -> str:
    return _counted(count, "row", "rows")


def _counted(count: int, singular: str, plural: str) -> str:
    return f"{count:,} {singular if count == 1 else plural}"


def _absent(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield notes on classes that have no row in a split."""
    counts = {name: split["classes"] for name, split in manifest["counts"].items()}
    if lost := [name for name, count in counts["train"].items() if not count]:
        yield (
            f"train.tsv has no rows labeled {_listed(lost)}, because all texts with this label are"
            " also in the test set"
        )
    for split in _held_out(manifest):
        rare = [name for name, count in counts[split].items() if not count and name not in lost]
        if rare:
            yield (
                f"{split}.tsv has no rows labeled {_listed(rare)}, because all of the few texts"
                f" with this label are in train.tsv; raise --{split}-fraction or add texts"
            )


def _small(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield notes on splits that are too small to evaluate a model."""
    for split in _held_out(manifest):
        rows = manifest["counts"][split]["rows"]
        if rows < _FEW:
            yield (
                f"{split}.tsv has only {_rows(rows)}, so each row changes the accuracy by"
                f" {1 / rows:.0%}; raise --{split}-fraction"
            )


def _held_out(manifest: dict[str, Any]) -> list[str]:
    """Return the splits that `prepare` took from the training set."""
    return ["test", "dev"] if manifest["options"].get("test_fraction") else ["dev"]


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED_CLASSES
    return ", ".join(names[:_NAMED_CLASSES]) + (f" and {more:,} more" if more > 0 else "")
