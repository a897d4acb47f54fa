"""Notes of `bertaccum prepare` on problems in the data, derived from the manifest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bertaccum.options.commands import StepConfig
from bertaccum.options.prepare import MIN_DEV_FRACTION
from bertaccum.options.task_names import (
    CLASSIFICATION,
    MULTI_LABEL,
    REGRESSION,
    TOKEN_CLASSIFICATION,
)
from bertaccum.system.phrases import counted, listed, percent
from data_prep.tables.spellings import has_stray, shown

# In a split with fewer examples, the standard error of an accuracy can be above 5%.
_FEW = 100
_NAMED_CLASSES = 5
_BY_CHANCE = "its scores depend largely on chance"
# For each kind of task, the name of conflicting labels and the advice about them.
_CONFLICTS = {
    None: ("more than one label", "correct the labels or delete the rows"),
    REGRESSION: ("more than one score", "the model learns their mean"),
    MULTI_LABEL: ("more than one set of labels", "correct the labels or delete the rows"),
    TOKEN_CLASSIFICATION: ("different tags", "correct the tags or delete the rows"),
}


def notes(manifest: dict[str, Any]) -> list[str]:
    """Return one line for each problem in the data that a user should know about."""
    kinds = (_duplicates, _conflicts, _oddities, _single, _tags, _absent, _enlarged, _small, _long)
    return [f"note: {line}" for kind in kinds for line in kind(manifest)]


def _long(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield how many texts the default maximum length would truncate."""
    longer = manifest["findings"]["estimated_tokens"]["longer_than"]
    shares = {limit: percent(part) for limit, part in longer.items()}
    share = shares.pop(str(StepConfig.max_seq_length))
    if share != "0%":
        share = f"about {share}" if share[0].isdecimal() and share != "100%" else share
        more = ", ".join(f"{other} more than {limit}" for limit, other in shares.items())
        long = f"{share} of the training texts have more than {StepConfig.max_seq_length} tokens"
        options = "`train --max-seq-length`, `--truncate` and `--windows`"
        yield f"{long}, {more}: {options} decide what is read"


def _duplicates(manifest: dict[str, Any]) -> Iterator[str]:
    findings, drop = manifest["findings"], manifest["options"]["drop_duplicates"]
    repeated = findings["repeated"]
    written = "train.tsv" if "also_in_dev" in findings else "train.tsv and dev.tsv"
    for split in ("test", "dev"):
        shared = findings.get(f"also_in_{split}", {"texts": 0})
        if shared["texts"]:
            kept = f"kept in {written}; --drop-duplicates leaves them out"
            left_out = f"left out of {written}; --no-drop-duplicates keeps them"
            done = kept if drop is False else left_out
            set_name = f"of the {split} set"
            texts = counted(shared["texts"], f"text {set_name} is", f"texts {set_name} are")
            yield f"{texts} also in the training set ({counted(shared['rows'], 'row')}): {done}"
    if (both := findings.get("dev_also_in_test", {"texts": 0}))["texts"]:
        texts = counted(both["texts"], "text of the dev set is", "texts of the dev set are")
        done = "kept in both, although dev.tsv selects the checkpoint"
        yield f"{texts} also in the test set ({counted(both['rows'], 'row')}): {done}"
    if repeated["texts"]:
        together = "all rows with the same text are in one split"
        where = "all of these rows are in train.tsv" if "also_in_dev" in findings else together
        every = f"{where}; --drop-duplicates keeps only the first"
        done = "only the first row of each is kept" if drop else every
        texts, rows = counted(repeated["texts"], "text occurs", "texts occur"), repeated["rows"]
        yield f"{texts} more than once in the training set ({counted(rows, 'row')}): {done}"


def _conflicts(manifest: dict[str, Any]) -> Iterator[str]:
    conflicting = manifest["findings"]["conflicting"]
    if not conflicting["texts"]:
        return
    kind, remedy = _CONFLICTS.get(manifest["task"], _CONFLICTS[None])
    rows = [" and ".join(f"{row:,}" for row in rows) for rows in conflicting["rows"]]
    more = "; ..." if conflicting["texts"] > len(rows) else ""
    texts = counted(conflicting["texts"], "text has", "texts have")
    yield f"{texts} {kind} in the training set (rows {'; '.join(rows)}{more}): {remedy}"


def _oddities(manifest: dict[str, Any]) -> Iterator[str]:
    findings = manifest["findings"]
    for part, empty in findings["empty"].items():
        first = f"first: row {empty['first_row']:,}"
        kept = "; they are kept: delete them if that is not meant" if part == "training" else ""
        yield f"{_rows_have(empty['rows'], part)} an empty text ({first}){kept}"
    yield from _spellings(findings["spellings"])
    for part, labels in findings["missing_labels"].items():
        for label, count in labels.items():
            rows = "the row" if count == 1 else "the rows"
            remedy = f"if it stands for a missing value, delete {rows}"
            yield f"{_rows_have(count, part)} the label {label!r}; {remedy}"


def _spellings(spellings: dict[str, dict[str, int]]) -> Iterator[str]:
    """Yield how labels are spelled that differ only in case or in what cannot be seen."""
    merged = {name: spelled for name, spelled in spellings.items() if len(spelled) > 1}
    for name, spelled in list(merged.items())[:_NAMED_CLASSES]:
        rows = [f"{shown(one)} ({counted(count, 'row')})" for one, count in spelled.items()]
        remedy = "--labels-as-written keeps them apart"
        yield f"these labels are spellings of the class {shown(name)}: {listed(rows)}; {remedy}"
    if len(merged) > _NAMED_CLASSES:
        others = counted(len(merged) - _NAMED_CLASSES, "other class has", "other classes have")
        yield f"{others} several spellings"
    if stray := [shown(name) for name in spellings if has_stray(name)]:
        yield f"class names contain invisible characters: {listed(stray)}; correct the labels"


def _rows_have(count: int, part: str) -> str:
    return counted(count, f"row of the {part} set has", f"rows of the {part} set have")


def _single(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield a note if all rows of a multi-label task have at most one label."""
    counts = [split for split in manifest["counts"].values() if "without_label" in split]
    several = any(
        sum(split["classes"].values()) > split["rows"] - split["without_label"] for split in counts
    )
    if counts and not several:
        remedy = "if labels are separated by another character, pass --label-separator"
        yield f"no row has more than one label; {remedy}"


def _tags(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield how many tags their scheme forbids."""
    scheme = manifest.get("label_format", {}).get("scheme")
    for split, counts in manifest["counts"].items():
        if forbidden := counts.get("forbidden_tags"):
            of = counted(forbidden, f"word of {split}.tsv has", f"words of {split}.tsv have")
            yield f"{of} a tag that {scheme} forbids after the tag before it; the tags are kept"


def _absent(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield notes on classes that have no row in a split, but not on those noted as missing."""
    counts = {name: split.get("classes", {}) for name, split in manifest["counts"].items()}
    missing = manifest["findings"]["missing_labels"]
    noted = set().union(*missing.values())
    if lost := [name for name, count in counts["train"].items() if not count and name not in noted]:
        kept = manifest["options"].get("drop_duplicates") is False
        dropped = "because all texts with this label are in another split"
        others = any(count.get(name) for count in counts.values() for name in lost)
        reason = dropped if others and not kept else "so a model cannot learn to predict it"
        yield f"train.tsv has no rows labeled {listed(lost)}, {reason}"
    noted.update(lost)
    for split in _held_out(manifest):
        rare = [name for name, count in counts[split].items() if not count and name not in noted]
        if rare:
            reason = "because all of the few texts with this label are in train.tsv"
            remedy = f"raise --{split}-fraction or add texts"
            yield f"{split}.tsv has no rows labeled {listed(rare)}, {reason}; {remedy}"


def _small(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield notes on splits that are too small to evaluate a model."""
    for split in _held_out(manifest):
        rows = manifest["counts"][split]["rows"]
        classes = manifest["task"] == CLASSIFICATION
        effect = f"each row changes the accuracy by {1 / rows:.0%}" if classes else _BY_CHANCE
        if rows < _FEW:
            only = f"{split}.tsv has only {counted(rows, 'row')}"
            yield f"{only}, so {effect}; raise --{split}-fraction"


def _enlarged(manifest: dict[str, Any]) -> Iterator[str]:
    """Yield that the default share of dev.tsv is larger because there are few training rows."""
    is_default = manifest["options"]["dev_fraction"] is None
    share, rows = manifest["dev_fraction"], manifest["counts"]["dev"]["rows"]
    if is_default and share > MIN_DEV_FRACTION and rows >= _FEW and "dev" in _held_out(manifest):
        yield (
            f"dev.tsv has {counted(rows, 'row')}, {100 * share:.2g}% of the training rows, because"
            f" {MIN_DEV_FRACTION:.0%} would be too few to choose a checkpoint;"
            " --dev-fraction sets another share"
        )


def _held_out(manifest: dict[str, Any]) -> list[str]:
    """Return the splits that `prepare` took from the training set."""
    held_out = {
        "test": manifest["options"].get("test_fraction"),
        "dev": "also_in_dev" not in manifest["findings"],
    }
    return [split for split, is_held_out in held_out.items() if is_held_out]
