"""Reading of files that the user named, up to a maximum size, and JSON."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from bertaccum.errors import ConfigError, InputError, reason

# Bytes in the largest text that is read at once, such as a vocabulary of a million entries.
_LARGEST = 1 << 25
# Bytes that a compressed file may contain beyond 50 times its size.
_UNPACKED_BYTES = 1 << 26


def check_writable(path: Path, option: str) -> None:
    """Raise ConfigError unless an option names a file that may be created or replaced."""
    # Renaming a file onto /dev/null would replace the device.
    special = path.absolute().parent == Path("/dev")
    special |= os.path.lexists(path) and not path.is_file()
    if special or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        what = f"{option} {path} cannot be written"
        raise ConfigError(what, "choose a file in an existing, writable folder")


@contextmanager
def open_input(path: Path) -> Iterator[BinaryIO]:
    """Open a file that the user named."""
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError as error:
        raise InputError("there is no such file", "check the path", path=path) from error
    except IsADirectoryError as error:
        raise InputError("is a folder, not a file", "pass a file in it", path=path) from error
    except OSError as error:
        raise InputError(f"cannot be read ({reason(error)})", path=path) from error


def refuse_special(path: Path) -> None:
    """Raise InputError if a file that is read more than once, or to its end, is a pipe or device.

    A device such as /dev/zero has no end.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        what = "is a pipe or device, but must be a file"
        raise InputError(what, "save it to a file first", path=path)


def read_text(path: Path, max_bytes: int = _LARGEST) -> str:
    """Return the text of a UTF-8 file that the user named."""
    with open_input(path) as file:
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        what = f"has more than {max_bytes >> 10:,} KiB, so it is not such a file"
        raise InputError(what, "check the path", path=path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = raw[: error.start].count(b"\n") + 1
        raise InputError("is not UTF-8", "save it as UTF-8 text", path=path, row=row) from error


def read_json(path: Path) -> Any:
    """Return the JSON value in a file."""
    refuse_special(path)
    text = read_text(path)
    try:
        return json.loads(text, parse_float=_finite_float, parse_constant=_finite_float)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not valid JSON ({error})", path=path) from None


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number")
    return number


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a configuration file."""
    values = read_json(path)
    if not isinstance(values, dict):
        what = "does not contain a JSON object"
        raise InputError(what, "use the file that came with the model", path=path)
    return values


def read_optional(path: Path) -> dict[str, Any]:
    """Return the JSON object in a configuration file, which is empty if there is no such file.

    Raises:
      InputError: The file does not contain a JSON object.
    """
    return read_object(path) if path.is_file() else {}


def read_mapping(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if the file is missing or damaged."""
    try:
        return read_object(path) if path.is_file() else None
    except InputError:
        return None


def json_text(values: dict[str, Any], indent: int | None = 2) -> str:
    """Return values as JSON text with a final newline; NaN and infinity become null."""
    return json.dumps(finite(values), indent=indent, ensure_ascii=False) + "\n"


def json_digest(value: Any) -> str:
    """Return the SHA-256 digest of a JSON value, in hexadecimal; the order of keys is ignored."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def finite(value: Any) -> Any:
    """Return a copy of a nested value in which None replaces NaN and infinity."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_unpacked(path: Path, size_bytes: int) -> None:
    """Raise InputError if the contents of a compressed file are far larger than the file.

    Weights and texts unpack to about three times their size.
    """
    if size_bytes > 50 * path.stat().st_size + _UNPACKED_BYTES:
        what = "unpacks to more than 50 times its size plus 64 MiB"
        raise InputError(what, "check what it contains, or unpack it yourself", path=path)


def check_digest(path: Path, now: str, before: str) -> None:
    """Raise InputError if a file that was just read has another digest than before."""
    if now != before:
        raise InputError("changed meanwhile", "run the command again", path=path)


def sha256(path: Path, report: Callable[[int], object] = bool) -> str:
    """Return the SHA-256 digest of a file's contents, in hexadecimal.

    Args:
      report: Called with the number of bytes of each block that was read.
    """
    refuse_special(path)
    digest = hashlib.sha256()
    with open_input(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
            report(len(block))
    return digest.hexdigest()
