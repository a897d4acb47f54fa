"""Checks of user input that the examples share."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click
from matplotlib.figure import Figure

# Folder with test data, which may not exist.
SHARED = Path(os.environ.get("BERTACCUM_SHARED", Path(__file__).resolve().parents[2] / "shared"))


class BadInput(click.ClickException):
    """An error in the user's input, shown in one line with exit code 2."""

    exit_code = 2


def check_figure(path: Path) -> None:
    """Raise `BadInput` if a figure cannot be written; called before training."""
    kinds = Figure().canvas.get_supported_filetypes()
    if path.suffix[1:] not in kinds:
        raise BadInput(f"cannot write {path}: --figure must end in one of .{', .'.join(kinds)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
        if path.exists():
            path.open("ab").close()
    except OSError as error:
        reason = f"cannot write {path}: {error.strerror}"
        raise BadInput(f"{reason}; choose another file with --figure") from None
