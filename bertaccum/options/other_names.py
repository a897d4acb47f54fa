"""Names of options and commands in other programs, and what bertaccum has instead."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from importlib.resources import files


@functools.cache
def other_names() -> dict[str, dict[str, list[str]]]:
    """Return the tables in other_names.yaml; each maps what bertaccum has to the other names."""
    import yaml

    text = files("bertaccum.options").joinpath("other_names.yaml").read_text("utf-8")
    tables = yaml.safe_load(text).items()
    return {name: {own: others.split() for own, others in rows.items()} for name, rows in tables}


def _plain(name: str) -> str:
    return name.strip("-").replace("-", "_").lower()


def _called(table: str, asked: str) -> list[str]:
    return [own for own, others in other_names()[table].items() if asked in others]


def own_option(name: str, options: Collection[str]) -> str | None:
    """Return which of some options a name stands for, here or in another program, if any."""
    asked = _plain(name)
    return next((ours for ours in (asked, *_called("options", asked)) if ours in options), None)


def explain_option(name: str, command: str, options: Mapping[str, Collection[str]]) -> str:
    """Return what bertaccum has instead of an unknown option; empty if the option is not known.

    Args:
      name: The option, such as `--lr` or `lr`.

    Returns:
      A phrase with our options in backticks, such as "bertaccum calls this `learning_rate`".
    """
    asked = _plain(name)
    if ours := own_option(name, options[command]):
        return f"bertaccum calls this `{ours}`"
    if instead := _called("instead", asked):
        return instead[0]
    for ours in (asked, *_called("options", asked)):
        if having := [other for other, those in options.items() if ours in those]:
            called = "this is" if ours == asked else f"bertaccum calls this `{ours}`,"
            return f"{called} an option of `bertaccum {'`, `'.join(having)}`"
    if asked.startswith("no"):  # run_classifier.py takes `--nouse_tpu` for `--use_tpu=false`.
        return explain_option(asked[2:].lstrip("_"), command, options)
    return ""


def explain_command(name: str) -> str:
    """Return what bertaccum calls an unknown command; empty if the command is not known."""
    asked = name.replace("-", "_").lower()
    found = _called("commands", asked)
    return f"bertaccum calls this {found[0]}" if found else ""
