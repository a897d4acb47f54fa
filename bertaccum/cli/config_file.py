"""Options from a YAML file. Its keys are the names of options; flags override the file."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import click

from bertaccum.cli.options import FLAGS, FieldOption, explained_option, file_option, flag_of
from bertaccum.errors import ConfigError, InputError
from bertaccum.options.commands import StepConfig
from bertaccum.options.fields import AUTO, field_names
from bertaccum.runs.paths import RunPaths
from bertaccum.system.files import read_mapping

_Ignored: TypeAlias = Callable[[str, Mapping[str, Any]], bool]
# config.yaml of a run also contains the values that bertaccum chose. If one of these options is on
# the command line, it chooses all of them again: another model has another learning rate.
_OF_MODEL = {"model", "init_checkpoint", "bert_config"}
_PLANNED = ("micro_batch", "recompute", "offload", "precision", "compile")
# The options that it chooses again for other options on the command line.
_CHOSEN_FOR = {
    **dict.fromkeys(("epochs", "max_tokens", "max_updates"), ("compile",)),
    **dict.fromkeys(field_names(StepConfig), _PLANNED),
    **dict.fromkeys(("text", "pack", "unlabelled", "strategy", "replicas"), _PLANNED),
    "task": (*_PLANNED, "best_by"),
    "data": (*_PLANNED, "best_by", "task"),
}
_REMEDY = "write `key: value` lines, such as `target_batch: 32`"


def config_option(ignored: _Ignored = lambda *_: False, again: bool = False) -> Callable[..., Any]:
    """Return the option `--config`.

    Args:
      ignored: Returns whether to ignore a key, given the keys and the text of all values.
      again: Whether bertaccum chooses all options again that it chose for the run of the file.
    """

    def use(ctx: click.Context, _: click.Parameter, path: str | None) -> None:
        if path is not None:
            values = _read(ctx, Path(path), ignored, _converted)
            outdated = _outdated(ctx, Path(path), again)
            ctx.default_map = {name: values[name] for name in values.keys() - outdated}

    return file_option(
        "--config",
        is_eager=True,
        expose_value=False,
        callback=use,
        help="YAML file with values for options; flags override it.",
    )


def _outdated(ctx: click.Context, path: Path, again: bool) -> set[str]:
    """Return the options that bertaccum chose for the run of a file, and now chooses again.

    Empty for a file that is not the config.yaml of a run.
    """
    run = RunPaths(path.parent)
    named = (read_mapping(run.inputs) or {}).get("named")
    if path.name != run.config.name or not isinstance(named, list):
        return set()
    can_choose = {str(p.name) for p in ctx.command.params if p.default in (None, AUTO)}
    chosen, flags = can_choose - {*map(str, named)}, ctx.meta.get(FLAGS, set())
    if again or flags & _OF_MODEL:
        return chosen
    return chosen & {name for flag in flags for name in _CHOSEN_FOR.get(flag, ())}


def _read_grid(ctx: click.Context, _: click.Parameter, path: str | None) -> Any:
    return None if path is None else _read(ctx, Path(path), lambda *_: False, _converted_list)


# The values of each option to vary.
Grid = dict[str, list[Any]]
# The option `--grid`, which passes a `Grid` or None as `grid`.
grid_option = file_option(
    "--grid",
    callback=_read_grid,
    help="YAML file with a list of values for each option to vary. [default: the grid of the BERT"
    " paper: target batch 16 and 32, learning rate 5e-5, 3e-5 and 2e-5, 2 to 4 epochs]",
)


def _read(
    ctx: click.Context, path: Path, ignored: _Ignored, convert: Callable[..., Any]
) -> dict[str, Any]:
    """Return the options that a YAML file sets, keyed by name."""
    parameters = {str(p.name): p for p in ctx.command.params if isinstance(p, FieldOption)}
    values: dict[str, Any] = {}
    entries = [*_entries(path)]
    given = {key: value for _, key, value in entries}
    for row, key, value in entries:
        if ignored(key, given):
            continue
        if key not in parameters:
            if flag := flag_of(ctx, key, parameters):
                what = f"{key!r} cannot be in a file"
                raise ConfigError(what, f"pass {flag} on the command line", path=path, row=row)
            closest = difflib.get_close_matches(key, parameters, n=1, cutoff=0.0)[0]
            explained = explained_option(ctx, key, parameters)
            hint = explained.replace("`", "") or f"did you mean {closest}?"
            raise ConfigError(f"unknown key {key!r}", hint, path=path, row=row)
        if key in values:
            raise ConfigError(f"{key} is given twice", "omit one of the two", path=path, row=row)
        try:
            values[key] = None if value is None else convert(parameters[key], value)
        except (click.BadParameter, ValueError) as error:
            reason = getattr(error, "message", str(error)).rstrip(".")
            raise ConfigError(f"{key}: {reason}", path=path, row=row) from None
    return {key: value for key, value in values.items() if value is not None}


def _entries(path: Path) -> Iterator[tuple[int, str, Any]]:
    """Yield the row, key and value of each entry of a YAML file; keys have no hyphens."""
    import yaml

    from bertaccum.system.yaml_loader import Loader

    class PlainLoader(Loader):
        """Leaves scalars as they are written: each option converts its own, as for a flag.

        YAML would make 8 of the folder `010`, 1.1 of the label `1.10` and true of the label `yes`.
        """

        yaml_constructors = yaml.SafeLoader.yaml_constructors | {
            f"tag:yaml.org,2002:{kind}": yaml.SafeLoader.construct_scalar
            for kind in ("bool", "int", "float", "timestamp")
        }

    try:
        loader = PlainLoader(path)
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode | None):
            raise InputError("has no `key: value` lines", "see configs/ for examples", path=path)
        for key_node, value_node in [] if root is None else root.value:
            key = str(loader.construct_object(key_node, deep=True)).replace("-", "_")
            value = loader.construct_object(value_node, deep=True)
            yield key_node.start_mark.line + 1, key, value
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or error
        row = mark.line + 1 if mark else None
        raise InputError(f"is not plain YAML ({problem})", _REMEDY, path=path, row=row) from None


def _converted(parameter: click.Parameter, value: Any) -> Any:
    if not isinstance(value, str):
        raise click.BadParameter(f"{value!r} is not valid")
    return parameter.type.convert(value, parameter, None)


def _converted_list(parameter: click.Parameter, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise click.BadParameter("needs a list of values, such as [1, 2]")
    return [_converted(parameter, value) for value in values]
