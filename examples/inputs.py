"""What the examples ask of what they are given."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click
from matplotlib.figure import Figure

# Where test data are, if they are here.
SHARED = Path(os.environ.get("BERTACCUM_SHARED", Path(__file__).resolve().parents[2] / "shared"))


class BadInput(click.ClickException):
    """One line, and the exit code of what the user can mend."""

    exit_code = 2


def check_figure(path: Path) -> None:
    """Says before anything is trained if a figure cannot be written."""
    kinds = Figure().canvas.get_supported_filetypes()
    if path.suffix[1:] not in kinds:
        raise BadInput(f"cannot write {path}: --figure has to end in one of .{', .'.join(kinds)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
        if path.exists():
            path.open("ab").close()
    except OSError as error:
        reason = f"cannot write {path}: {error.strerror}"
        raise BadInput(f"{reason}; name another file with --figure") from None
