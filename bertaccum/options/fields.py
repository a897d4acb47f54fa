"""Fields of a configuration, with their defaults, help texts, bounds and checks."""

from __future__ import annotations

import codecs
import dataclasses
import math
import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from bertaccum.errors import ConfigError
from bertaccum.system.sizes import parse_size

AUTO = "auto"
ON, OFF = "on", "off"
MAX_EPOCHS = 1_000_000
TRACKERS = ("mlflow", "wandb")
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
# Options of the columns of `test_file`; each replaces the option without `test_`.
TEST_COLUMNS = ("test_text_column", "test_text_pair_column", "test_label_column")
_LEAST_MEMORY_BYTES = 2**20
_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Numbers(NamedTuple):
    """The valid numbers of an option."""

    low: float
    high: float | None = None
    exclusive: bool = False  # Whether the bounds themselves are invalid.
    real: bool = False  # Whether a number need not be whole although the default is None.
    # Whether a positive number with a decimal point is also valid and counts epochs.
    fraction: bool = False

    def __str__(self) -> str:
        """Return the range, such as `1<=x<=9`; empty if it depends on the unit."""
        sign = "<" if self.exclusive else "<="
        if self.fraction:
            return ""
        if self.high is None:
            return f"x{sign.replace('<', '>')}{self.low}"
        return f"{self.low}{sign}x{sign}{self.high}"

    def problem(self, value: float) -> str | None:
        """Return why a number is out of range, or None if it is not."""
        low, high = self.low, self.high
        if value < low or (self.exclusive and value == low):
            return f"is not above {low}" if self.exclusive else f"is below {low}"
        if high is not None and (value > high or (self.exclusive and value == high)):
            return f"is not below {high}" if self.exclusive else f"is above {high}"
        return None


def setting(
    default: Any,
    help: str,
    *,
    group: str | None = None,
    choices: tuple[str, ...] = (),
    numbers: Numbers | None = None,
    free: bool = False,
    switch: bool = False,
    path: bool = False,
    check: Callable[[Any], Any] | None = None,
) -> Any:
    """Return a dataclass field that also carries its help text and its valid values.

    Args:
      help: The help text for the command line. It names other options in backticks.
      group: The section of the command's help that lists the option, one of `GROUPS`.
      numbers: The valid numbers, for an option whose value is a number or `auto`.
      free: Whether a resumed run may change the value, because the updates do not depend on it.
      switch: Whether the option is True, False or None, which leaves the choice to the program.
      path: Whether the value is the path of a file or folder, which shells can complete.
      check: Called with each value that is not None; raises ConfigError if the value is invalid.
    """
    # The metadata are the arguments of this function.
    return dataclasses.field(default=default, metadata=locals())


def memory_limit_setting(group: str | None = None) -> Any:
    """Return the dataclass field that defines the option `memory_limit`."""
    help = (
        "Maximum device memory to use, such as 4GiB; without a GPU, the CPU simulates a GPU with"
        " that much memory."
    )
    check = partial(size_in_bytes, "memory_limit")
    return setting(None, help, group=group, free=True, check=check)


@dataclasses.dataclass(frozen=True)
class Options:
    """The base class of all configurations.

    Raises:
      ConfigError: A value has the wrong type, is not a valid choice or is out of bounds.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None:
                if field.default is None:
                    continue
                raise ConfigError(f"`{field.name}` is None", "omit it to use the default")
            value = _plain(field, value)
            object.__setattr__(self, field.name, value)
            if problem := problem_of(field, value):
                raise ConfigError(f"`{field.name}` {value} {problem}")
            if check := field.metadata["check"]:
                check(value)


def _plain(field: dataclasses.Field[Any], value: Any) -> Any:
    """Return the value of an option as the command line would set it."""
    default, known = field.default, field.metadata
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, bool) and ON in known["choices"]:
        return ON if value else OFF  # YAML reads the words as booleans.
    if getattr(value, "ndim", None) == 0:  # A NumPy scalar, which YAML cannot represent.
        value = value.item()
    is_text = not (known["numbers"] or known["switch"] or isinstance(default, bool))
    # A number, such as that of a column, but neither NaN nor infinity.
    is_number = type(value) in (int, float) and abs(value) < math.inf
    return str(value) if is_text and is_number else value


def plain_options(config: Options, options: dict[str, Any]) -> dict[str, Any]:
    """Return options, keyed by name, as a configuration of the same class would contain them."""
    known = {field.name: field for field in dataclasses.fields(config)}
    return {name: _plain(known[name], value) for name, value in options.items()}


def field_names(config: type) -> set[str]:
    """Return the names of the options of a configuration class."""
    return {field.name for field in dataclasses.fields(config)}


def problem_of(field: dataclasses.Field[Any], value: Any) -> str | None:
    """Return a description of what is wrong with a value, or None if the value is valid."""
    default, known = field.default, field.metadata
    numbers: Numbers | None = known["numbers"]
    if known["choices"] and value not in known["choices"]:
        return f"is not one of {', '.join(known['choices'])}"
    if numbers and value == AUTO == default:
        return None
    if isinstance(default, bool) or known["switch"]:
        return None if isinstance(value, bool) else "is not on or off"
    if numbers is None and not isinstance(value, str):
        return "is not text"
    if numbers is None:
        if known["path"] and not value.strip():
            return "is empty; pass a path, or omit it"
        # The name of a model may be an address, about which `find_model` has more to say.
        is_path = known["path"] and field.name != "init_checkpoint"
        where = "is an address; use a path on this machine"
        return where if is_path and is_address(value) else None
    if numbers.fraction and isinstance(value, float):
        return None if 0 < value <= MAX_EPOCHS else "is not a finite number of epochs above 0"
    number = int | float if isinstance(default, float) or numbers.real else int
    # math.isfinite raises for integers too large for a float.
    if type(value) is bool or not isinstance(value, number) or not -math.inf < value < math.inf:
        return "is not a finite number" if number is not int else "is not a whole number"
    return numbers.problem(value)


def is_address(text: str) -> bool:
    """Return whether a text is the address of a file or page, such as https://…"""
    return re.match(r"\w+://", text) is not None


def size_in_bytes(option: str, value: str | None, least: int = _LEAST_MEMORY_BYTES) -> int | None:
    """Return the value of a size option in bytes, or None if it is not set.

    Args:
      least: The smallest valid size in bytes.

    Raises:
      ConfigError: The value is not a size, or is below `least`.
    """
    if value is None:
        return None
    try:
        size = parse_size(value)
    except ValueError as error:
        raise ConfigError(f"`{option}` {value} {error}") from None
    if size < least:
        lacks_unit = value.strip()[-1].isdecimal()
        remedy = "add a unit, as in 4GiB" if lacks_unit else f"pass at least {least >> 10} KiB"
        raise ConfigError(f"`{option}` {value} means {size:,} bytes", remedy)
    return size


def save_interval(text: str) -> tuple[int | None, float | None]:
    """Return `save_every` as (updates, None) or (None, seconds)."""
    match = re.fullmatch(r"0*([1-9]\d{0,8})\s*([smh]?)", text.strip())
    if match is None:
        what = f"`save_every` {text} is neither a number of updates nor a time"
        raise ConfigError(what, "write it as 200, 90s, 10m or 2h")
    number, unit = int(match[1]), match[2]
    return (None, number * _UNIT_SECONDS[unit]) if unit else (number, None)


def timeout_seconds(text: str) -> float:
    """Return `collective_timeout` in seconds."""
    match = re.fullmatch(r"0*([1-9]\d{0,8})\s*([smh])", text.strip())
    if match is None:
        what = f"`collective_timeout` {text} is not a time"
        raise ConfigError(what, "write it as 90s, 10m or 2h")
    return int(match[1]) * _UNIT_SECONDS[match[2]]


def delimiter_setting(group: str | None = None) -> Any:
    """Return the dataclass field that defines the option `delimiter`."""
    help = (
        f"Column separator: {', '.join(DELIMITERS)}, or any other single character."
        " [default: detected]"
    )
    return setting(None, help, group=group, check=delimiter_character)


def encoding_setting(group: str | None = None) -> Any:
    """Return the dataclass field that defines the option `encoding`."""
    help = (
        "Text encoding, such as cp1252 or utf-16."
        " [default: the one that the byte order mark indicates, else UTF-8]"
    )
    return setting(None, help, group=group, check=check_encoding)


def delimiter_character(value: str | None) -> str | None:
    """Return the separator that `delimiter` names, or None if it is not set."""
    if value is None:
        return None
    character = (DELIMITERS | {r"\t": "\t"}).get(value, value)
    if len(character) != 1 or character in '"\r\n\0':
        what = f"`delimiter` {value!r} cannot separate columns"
        raise ConfigError(what, f"use {', '.join(DELIMITERS)}, or any other single character")
    return character


def label_columns_setting(file: str = "", group: str | None = None) -> Any:
    """Return the dataclass field of the option `label_columns`; `file` says whose they are."""
    help = (
        f"Names or 1-based numbers of columns{file} that contain 1 if the label with the column's"
        " name applies, else 0, separated by commas. They replace `label_column`."
    )
    return setting(None, help, group=group, check=column_names)


def refuse_single_label_column(config: Any, *names: str) -> None:
    """Raise ConfigError if `label_columns` and an option for a single column are both given."""
    for name in names:
        if config.label_columns and getattr(config, name) != getattr(type(config), name):
            what = f"`{name}` {getattr(config, name)} and `label_columns` both name the labels"
            raise ConfigError(what, "omit one of the two")


def label_separator_setting(group: str | None = None) -> Any:
    """Return the dataclass field that defines the option `label_separator`."""
    help = (
        "Separator of the labels in the label column, for a multi-label task. [default: | if it"
        " occurs, else detected]"
    )
    return setting(None, help, group=group, check=check_label_separator)


def column_names(value: str | None) -> tuple[str, ...]:
    """Return the columns that `label_columns` names."""
    if value is None:
        return ()
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        what = f"`label_columns` {value!r} contains an empty name"
        raise ConfigError(what, "separate names or numbers of columns by commas, as in joy,anger")
    return names


def tag_names(value: str | None) -> tuple[str, ...]:
    """Return the names of numbered tags, in the order of their numbers."""
    names = tuple(name.strip() for name in value.split(",")) if value is not None else ()
    for name in names:
        if len(name.split()) != 1 or names.count(name) > 1:
            wrong = "occurs twice" if names.count(name) > 1 else "is not one word"
            what = f"the name {name!r} in `tag_names` {wrong}"
            raise ConfigError(what, "separate different names by commas, as in O,B-PER,I-PER")
    return names


def tracker_names(value: str) -> list[str]:
    """Return the trackers that `track` names."""
    names = [] if value == "none" else [name.strip() for name in value.split(",")]
    for name in names:
        if name not in TRACKERS:
            what = f"`track` {value}: {name!r} is not a known tracker"
            raise ConfigError(what, f"use none, {', '.join(TRACKERS)}, or {','.join(TRACKERS)}")
    return names


def host_names(value: str | None) -> tuple[str, ...]:
    """Return the names that `allowed_host` contains, in lower case."""
    names = [] if value is None else value.lower().split(",")
    names = [name.strip().removesuffix(".") for name in names]
    if not all(re.fullmatch(r"[\w.-]+|[0-9a-f:.]+", name, re.ASCII) for name in names):
        raise ConfigError(
            f"`allowed_host` {value!r} is not a host name",
            "write names without http:// and port, separated by commas, as in a.example,b.example",
        )
    return tuple(names)


def check_label_separator(value: str) -> None:
    """Raise ConfigError if a label separator is empty or contains a line break."""
    if not value or set(value) & set("\r\n\0"):
        what = f"`label_separator` {value!r} cannot separate labels"
        raise ConfigError(what, "use a character such as ,")


def check_encoding(value: str) -> None:
    """Raise ConfigError if Python has no text encoding of this name."""
    try:
        codecs.getincrementaldecoder(value)
        "a\n".encode(value).decode(value)
    except (LookupError, ValueError, TypeError):
        what = f"`encoding` {value} is not a known encoding"
        raise ConfigError(what, "use an encoding such as cp1252 or utf-16") from None


def named_options(config: Any) -> dict[str, Any]:
    """Return the options that differ from their defaults, keyed by name."""
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    return {name: value for name, value in vars(config).items() if value != defaults[name]}


def means_the_same(name: str, one: Any, two: Any) -> bool:
    """Return whether two values of an option mean the same.

    Python's `==` does not tell an `eval_every` of 1 update from one of 1.0 epochs.
    """
    units = [type(value) for value in (one, two)] if name == "eval_every" else []
    return bool(one == two) and len(set(units)) < 2
