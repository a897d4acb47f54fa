"""Which rows of the training set are held out, and in what order all rows are written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

Group = list[int]


def split_rows(
    texts: Sequence[bytes], labels: Sequence[int], fractions: Mapping[str, float], seed: int
) -> dict[str, list[int]]:
    """Split rows by class, with all rows of one text on the same side.

    A pure function of its arguments:

    1. Rows are ordered by one random number each, from Philox's raw stream. NumPy promises that
       stream, but not what `Generator.permutation` makes of it, so the split does not change
       with NumPy's version.
    2. Each held-out split gets a quota of rows from each class: its share, rounded down, and the
       remaining rows by largest remainder, then larger class, then earlier in that order. One
       row of each class at least stays in train.
    3. The rows of one text form a group, placed at its first row. In order, each split takes the
       groups that its quotas have room for; train gets the others.
    4. A split that found no room for any group takes the smallest one that leaves every class
       in train.

    Args:
      texts: every row's text.
      labels: every row's class number.
      fractions: share of all rows to hold out, by split; their sum is below 1.
      seed: of the order.

    Returns:
      Row numbers by split, `train` and those of `fractions`, each in the random order. A
      held-out split is empty only if every class left in train has a single text.
    """
    order = np.argsort(np.random.Philox(key=seed).random_raw(len(texts)), kind="stable").tolist()
    rows = Counter(labels[row] for row in order)
    left, rows_of = Counter(rows), dict[bytes, Group]()
    for row in order:
        rows_of.setdefault(texts[row], []).append(row)
    groups = list(rows_of.values())
    split_of: dict[int, str] = {}
    for name, fraction in fractions.items():
        taken = _fill(groups, labels, _quotas(rows, left, fraction))
        taken = taken or _smallest(groups, labels, left)
        held_out = [row for group in taken for row in group]
        split_of |= dict.fromkeys(held_out, name)
        left -= Counter(labels[row] for row in held_out)
        groups = [group for group in groups if group[0] not in split_of]
    splits: dict[str, list[int]] = {name: [] for name in ("train", *fractions)}
    for row in order:
        splits[split_of.get(row, "train")].append(row)
    return splits


def _quotas(rows: Mapping[int, int], left: Mapping[int, int], fraction: float) -> dict[int, int]:
    """How many rows of each class to hold out; `left` are still in train."""
    shares = {label: count * fraction for label, count in rows.items()}
    quotas = {label: min(int(share), left[label] - 1) for label, share in shares.items()}
    missing = max(round(sum(rows.values()) * fraction), 1) - sum(quotas.values())
    by_remainder = sorted(shares, key=lambda label: (quotas[label] - shares[label], -rows[label]))
    roomy = [label for label in by_remainder if quotas[label] < left[label] - 1]
    for label in roomy[: max(missing, 0)]:
        quotas[label] += 1
    return quotas


def _fill(groups: list[Group], labels: Sequence[int], quotas: dict[int, int]) -> list[Group]:
    """The first groups that fit in the quotas."""
    taken, room = [], sum(quotas.values())
    for group in groups:
        if not room:
            break
        needed = Counter(labels[row] for row in group)
        if all(quotas[label] >= count for label, count in needed.items()):
            taken.append(group)
            room -= len(group)
            for label, count in needed.items():
                quotas[label] -= count
    return taken


def _smallest(groups: list[Group], labels: Sequence[int], left: Mapping[int, int]) -> list[Group]:
    """The smallest group that leaves a row of each class in train, if there is one."""

    def leaves_all(group: Group) -> bool:
        needed = Counter(labels[row] for row in group)
        return all(left[label] > count for label, count in needed.items())

    return sorted(filter(leaves_all, groups), key=len)[:1]
