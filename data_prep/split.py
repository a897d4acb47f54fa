"""Splits the training rows class by class, and puts the rows of each split in random order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

Group = list[int]


def split_rows(
    texts: Sequence[bytes], labels: Sequence[int], fractions: Mapping[str, float], seed: int
) -> dict[str, list[int]]:
    """Split rows in proportion to the classes; rows with the same text stay in one split.

    The result depends only on the arguments:

    1. Each row gets a random number from Philox's raw stream, and the rows are sorted by these
       numbers. NumPy guarantees this stream but not the results of `Generator.permutation`, so the
       split does not change with NumPy's version.
    2. Each held-out split gets a quota of rows from each class: the class's share, rounded down.
       The rows that are lost by rounding are added to the classes with the largest remainders, then
       to larger classes, then to classes that come earlier in the random order. At least one row
       of each class stays in train.
    3. The rows with the same text form a group, at the position of its first row. In this order,
       each held-out split takes the groups that fit in its quotas; train gets the other groups.
    4. If no group fits, a held-out split takes the smallest group that leaves at least one row of
       each class in train.

    Args:
      fractions: The fraction of all rows to hold out, keyed by split. The sum must be below 1.

    Returns:
      The row numbers of `train` and of each split in `fractions`, keyed by split, in random order.
      A held-out split is empty only if no group can be taken without removing a class from train.
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
    """Return the number of rows to hold out from each class."""
    shares = {label: count * fraction for label, count in rows.items()}
    quotas = {label: min(int(share), left[label] - 1) for label, share in shares.items()}
    missing = max(round(sum(rows.values()) * fraction), 1) - sum(quotas.values())
    by_remainder = sorted(shares, key=lambda label: (quotas[label] - shares[label], -rows[label]))
    roomy = [label for label in by_remainder if quotas[label] < left[label] - 1]
    for label in roomy[: max(missing, 0)]:
        quotas[label] += 1
    return quotas


def _fill(groups: list[Group], labels: Sequence[int], quotas: dict[int, int]) -> list[Group]:
    """Return the first groups that fit in the quotas, and reduce the quotas accordingly."""
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
    """Return a list with the smallest group that leaves at least one row of each class in train."""
    # The list is empty if there is no such group.

    def leaves_all(group: Group) -> bool:
        needed = Counter(labels[row] for row in group)
        return all(left[label] > count for label, count in needed.items())

    return sorted(filter(leaves_all, groups), key=len)[:1]
