"""Tables on stdout that fit the terminal. Names wrap onto several lines; numbers are never split.

The functions import rich, which takes time, when they show something.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bertaccum.cli.display.sentences import naming_stdout
from bertaccum.system.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Width for a pipe or a file, where each row is one line and no column is left out.
_NO_LIMIT = 1_000_000
# Minimum width of a wrapped name, in terminal cells.
_NARROWEST_NAME = 12
# Numbers with their units, sizes such as 8 x 4, times and dates.
_NUMBER = re.compile(r"(?:[-+?\d.,:%*=/ ]|x|by|e)+(?: [A-Za-z/]+)?")
_BORDERS, _GAP = 3, 2

Row = Sequence[str]
# The name of a column, then its cells.
Column = Sequence[str]


def _stdout() -> Console:
    """Return a console as wide as the terminal."""
    # The width is unlimited if stdout is not a terminal.
    from rich.console import Console

    width = None if sys.stdout.isatty() else _NO_LIMIT
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False, width=width)


def is_limited() -> bool:
    """Return whether stdout has a limited width."""
    return _stdout().width < _NO_LIMIT


def print_line(line: str, wrap: bool = True) -> None:
    """Print a line, which wraps between words unless `wrap` is false, as for a path."""
    with naming_stdout():
        _stdout().print(printable(line), soft_wrap=not wrap)


def print_paths(paths: Sequence[str]) -> None:
    """Print the paths of files that were written."""
    for path in paths:
        print_line(f"{path}: written", wrap=False)


def layout(columns: Sequence[Column], width: int, boxed: bool = True) -> Table | None:
    """Return a table at most `width` cells wide, or None if the columns do not fit."""
    if boxed and (widths := _widths(columns, width - _BORDERS * len(columns) - 1)):
        return _table(columns, widths, boxed)
    if widths := _widths(columns, width - _GAP * (len(columns) - 1)):
        return _table(columns, widths, boxed=False)
    return None


def fitted(
    head: Row, rows: Sequence[Row], width: int, least: Sequence[str] = (), boxed: bool = True
) -> tuple[Table, list[str]]:
    """Return a table without the columns that do not fit, and the names of these columns.

    Args:
      least: The columns to leave out first, in this order; the others follow from the right, except
        the first one.
    """
    columns = _columns(head, rows)
    # A column for remarks has no name; it is left out if there are none.
    columns = [column for column in columns if any(column)]
    head = [column[0] for column in columns]
    others = [i for i in reversed(range(1, len(head))) if head[i] not in least]
    first_out = [head.index(name) for name in least if name in head] + others
    for count in range(len(first_out) + 1):
        left_out = sorted(first_out[:count])
        kept = [column for i, column in enumerate(columns) if i not in left_out]
        if table := layout(kept, width, boxed):
            return table, [head[i] for i in left_out]
    return _table(columns[:1], [width], boxed=False), [*head[1:]]


def show(head: Row, rows: Sequence[Row], least: Sequence[str] = ()) -> None:
    """Print a table without the columns that do not fit, and a line that names these columns."""
    table, left_out = fitted(head, rows, _stdout().width, least)
    _print(table)
    if named := [name for name in left_out if name]:
        print_line(f"no room for: {', '.join(named)}; --json has all columns")


def show_whole(head: Row, rows: Sequence[Row]) -> bool:
    """Print a table if all its columns fit, and return whether they do."""
    table = layout(_columns(head, rows), _stdout().width)
    if table is not None:
        _print(table)
    return table is not None


def show_facts(facts: dict[str, str]) -> None:
    """Print one line per fact that is not empty; long lines wrap between words."""
    known = {name: fact for name, fact in facts.items() if fact}
    width = min(max(map(len, known)) + 1, _stdout().width // 2)
    for name, fact in known.items():
        print_line(f"{name:{width}} {fact}")


def show_side_by_side(head: Row, rows: Sequence[Row]) -> None:
    """Print all columns, in several tables if necessary; each table repeats the first column."""
    while len(head) > 1:
        table, left_out = fitted(head, rows, _stdout().width)
        _print(table)
        # If not even one column fits beside the first one, go on with the column after it.
        done = max(len(head) - len(left_out), 2)
        head, rows = [head[0], *head[done:]], [[row[0], *row[done:]] for row in rows]


def below_common_folder(paths: Sequence[str]) -> list[str]:
    """Print the common folder of the paths, if any, and return the paths relative to it.

    If the width is unlimited, print nothing and return the paths unchanged.
    """
    if not is_limited():
        return list(paths)
    folder, names = without_common_folder(paths)
    if folder:
        print_line(f"in {folder}", wrap=False)
    return names


def without_common_folder(paths: Sequence[str]) -> tuple[str, list[str]]:
    """Return the common folder of the paths, with a final slash, and the paths relative to it.

    The folder is an empty string if the paths have no common folder.
    """
    parents = [Path(path).parents for path in paths]
    shared = [folder for folder in parents[0] if all(folder in others for others in parents)]
    if len(paths) < 2 or not shared or str(shared[0]) in (".", "/"):
        return "", list(paths)
    return f"{shared[0]}/", [str(Path(path).relative_to(shared[0])) for path in paths]


def _print(table: Table) -> None:
    with naming_stdout():
        _stdout().print(table)


def _columns(head: Row, rows: Sequence[Row]) -> list[Column]:
    """Return the columns of a table, with cells that are safe to print."""
    return [[printable(cell) for cell in column] for column in zip(head, *rows, strict=True)]


def _table(columns: Sequence[Column], widths: Sequence[int], boxed: bool) -> Table:
    from rich.table import Table

    table = Table() if boxed else Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    head, *rows = zip(*columns, strict=True)
    for name, width in zip(head, widths, strict=True):
        table.add_column(name, width=width, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _widths(columns: Sequence[Column], room: int) -> list[int] | None:
    """Return the column widths, or None if the columns do not fit; the widest names wrap first."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in columns]
    least = [_least_width(column) for column in columns]
    if sum(least) > room:
        return None
    while sum(widths) > room:
        loose = [i for i, width in enumerate(widths) if width > least[i]]
        widths[max(loose, key=lambda i: widths[i])] -= 1
    return widths


def _least_width(column: Column) -> int:
    """Return the smallest width that splits no number and keeps names readable."""
    from rich.cells import cell_len

    head, *cells = column
    numbers = [cell for cell in cells if _NUMBER.fullmatch(cell)]
    names = [*head.split(), *cells]
    widths = [min(cell_len(name), _NARROWEST_NAME) for name in names]
    return max([*widths, *map(cell_len, numbers)], default=0)
