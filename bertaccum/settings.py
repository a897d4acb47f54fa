"""Fields of a configuration: their defaults, help texts, bounds and checks.

Standard library only.
"""

from __future__ import annotations

import codecs
import dataclasses
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from bertaccum.errors import ConfigError
from bertaccum.sizes import parse_size

AUTO = "auto"
MOST_EPOCHS = 1e6
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
_LEAST_SIZE = 2**20  # bytes
_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    exclusive: bool = False,
    free: bool = False,
    switch: bool = False,
    fraction: bool = False,
    path: bool = False,
    check: Callable[[Any], Any] | None = None,
) -> Any:
    """A dataclass field that also knows its help text and its valid values.

    Args:
      default: the default value; `None` where the help text names the fallback.
      help: one sentence for the help of the command line and the README table; it names other
        options in backticks.
      choices: valid strings, if only these are.
      minimum: smallest valid number.
      maximum: largest valid number.
      exclusive: the bounds themselves are not valid.
      free: it does not decide the updates, so that a run may be resumed with another value.
      switch: it can be on, off, or left to the tool, which is None.
      fraction: a number with a point is valid, too, above 0: it is a share of something.
      path: of a file or folder, which shells can complete.
      check: called with a value that is not None; raises ConfigError for one that is not valid.
    """
    metadata = {
        "help": help,
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
        "exclusive": exclusive,
        "free": free,
        "switch": switch,
        "fraction": fraction,
        "path": path,
        "check": check,
    }
    return dataclasses.field(default=default, metadata=metadata)


def memory_limit_setting() -> Any:
    """The field behind `memory_limit`."""
    help = "Memory of the device, such as 4GiB; a CPU rehearses a GPU of that size."
    return setting(None, help, free=True, check=partial(size_in_bytes, "memory_limit"))


@dataclasses.dataclass(frozen=True)
class Options:
    """What all configurations are.

    Raises:
      ConfigError: a field is not of its type, choices or bounds.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None:
                continue
            if problem := problem_of(field, value):
                raise ConfigError(f"`{field.name}` {value} {problem}")
            if check := field.metadata["check"]:
                check(value)


def field_names(config: type) -> set[str]:
    """Of a configuration's class."""
    return {field.name for field in dataclasses.fields(config)}


def problem_of(field: dataclasses.Field[Any], value: Any) -> str | None:
    """Return what is wrong with a field's value; None if it is of its type, choices and bounds."""
    default, bounds = field.default, field.metadata
    numeric = bounds["minimum"] is not None
    if bounds["choices"] and value not in bounds["choices"]:
        return f"is not one of {', '.join(bounds['choices'])}"
    if numeric and value == AUTO == default:
        return None
    if isinstance(default, bool) or bounds["switch"]:
        return None if isinstance(value, bool) else "is not on or off"
    if not numeric:
        return None if isinstance(value, str) else "is not text"
    if bounds["fraction"] and isinstance(value, float):
        return None if 0 < value <= MOST_EPOCHS else "is not a finite number of epochs above 0"
    number = int | float if isinstance(default, float) else int
    if isinstance(value, bool) or not isinstance(value, number) or not _is_finite(value):
        return "is not a finite number" if number is not int else "is not a whole number"
    return _out_of_range(value, bounds)


def _is_finite(value: float) -> bool:
    return -math.inf < value < math.inf  # math.isfinite fails where a whole number has no float.


def _out_of_range(value: float, bounds: Any) -> str | None:
    low, high, open_ends = bounds["minimum"], bounds["maximum"], bounds["exclusive"]
    if value < low or (open_ends and value == low):
        return f"is not above {low}" if open_ends else f"is below {low}"
    if high is not None and (value > high or (open_ends and value == high)):
        return f"is not below {high}" if open_ends else f"is above {high}"
    return None


def size_in_bytes(option: str, value: str | None) -> int | None:
    """Return the bytes that a size option means.

    Raises:
      ConfigError: it is not a size, or so small that its unit was probably forgotten.
    """
    if value is None:
        return None
    try:
        size = parse_size(value)
    except ValueError as error:
        raise ConfigError(f"`{option}` {value} {error}") from None
    if size < _LEAST_SIZE:
        raise ConfigError(f"`{option}` {value} means {size:,} bytes", "add a unit, as in 4GiB")
    return size


def save_interval(text: str) -> tuple[int | None, float | None]:
    """What `save_every` means: a number of updates, or seconds; ConfigError if neither."""
    match = re.fullmatch(r"0*([1-9]\d{0,8})\s*([smh]?)", text.strip())
    if match is None:
        raise ConfigError(
            f"`save_every` {text} is neither updates nor time", "write it as 200, 90s, 10m or 2h"
        )
    number, unit = int(match[1]), match[2]
    return (None, number * _UNIT_SECONDS[unit]) if unit else (number, None)


def timeout_seconds(text: str) -> float:
    """The seconds that `collective_timeout` means; ConfigError if it is no time."""
    match = re.fullmatch(r"0*([1-9]\d{0,8})\s*([smh])", text.strip())
    if match is None:
        raise ConfigError(f"`collective_timeout` {text} is no time", "write it as 90s, 10m or 2h")
    return int(match[1]) * _UNIT_SECONDS[match[2]]


def delimiter_setting() -> Any:
    """The field behind `delimiter`."""
    help = (
        f"Column separator of the file: {', '.join(DELIMITERS)}, or another character."
        " [default: found in the file]"
    )
    return setting(None, help, check=delimiter_character)


def encoding_setting() -> Any:
    """The field behind `encoding`."""
    help = (
        "Encoding of the file, such as latin-1 or utf-16."
        " [default: UTF-8, or what a byte order mark says]"
    )
    return setting(None, help, check=check_encoding)


def delimiter_character(value: str | None) -> str | None:
    """Return the character that `delimiter` means; ConfigError if it is none."""
    if value is None or value in DELIMITERS:
        return None if value is None else DELIMITERS[value]
    character = "\t" if value == r"\t" else value
    if len(character) != 1 or character in '"\r\n\0':
        raise ConfigError(
            f"`delimiter` {value!r} cannot separate columns",
            f"name {', '.join(DELIMITERS)}, or one character",
        )
    return character


def check_encoding(value: str) -> None:
    """Raise ConfigError if Python knows no such encoding of texts."""
    try:
        codecs.getincrementaldecoder(value)
        "a\n".encode(value).decode(value)
    except (LookupError, ValueError, TypeError):
        raise ConfigError(
            f"`encoding` {value} is not a known encoding", "name one such as utf-16 or latin-1"
        ) from None


def named_options(config: Any) -> dict[str, Any]:
    """Return the options that are not at their defaults, by name."""
    own = {f.name: (getattr(config, f.name), f.default) for f in dataclasses.fields(config)}
    return {name: value for name, (value, default) in own.items() if value != default}
