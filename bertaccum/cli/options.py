"""Command-line options: those of the configuration dataclasses, and those shared by commands."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import re
import sys
import typing
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import click

from bertaccum.cli.display.sentences import with_flags
from bertaccum.cli.display.view import Lines, Records, View
from bertaccum.errors import ConfigError
from bertaccum.options.commands import GROUPS, OUTPUT
from bertaccum.options.fields import AUTO, Numbers, problem_of
from bertaccum.options.other_names import explain_option, own_option
from bertaccum.runs.paths import RunPaths, target_of

# With more options, `--help` shows only the main ones, and `--help-all` shows all of them.
_LONG, _ALL = 25, "bertaccum.help_all"
# Key of `ctx.meta`: the names of the options and arguments on the command line.
FLAGS = "bertaccum.flags"
_MAIN = {
    *("config", "data", "max_seq_length", "model", "init_checkpoint", "target_batch"),
    *("micro_batch", "memory_limit", "epochs", "learning_rate", "seed", "find_lr", "resume"),
    *("eval_every", "out", "help", "help_all", "source", "dataset", "archive", "train_file"),
    *("test_file", "text_column", "text_pair_column", "label_column", "label_columns"),
    *("delimiter", "dev_fraction", "test_fraction", "device_memory", "card", "grid", "halving"),
    *("text", "pack", "whole_words", "add_words"),
}


class GroupedOption(click.Option):
    """An option with the name of the help section that lists it."""

    def __init__(self, *names: Any, group: str | None = None, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.group = group


class FieldOption(GroupedOption):
    """An option for a field of a configuration, which a `--config` file may set."""

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        if isinstance(self.type, Number) and (valid := str(self.type.valid)):
            extra |= {"range": valid}
        return extra


grouped_option = functools.partial(click.option, cls=GroupedOption)
_output_option = functools.partial(grouped_option, group=OUTPUT)
file_option = functools.partial(click.option, type=click.Path(), metavar="FILE")


def explained_option(ctx: click.Context, name: str, own: Collection[str]) -> str:
    """Return what bertaccum has instead of an unknown option; see `explain_option`."""
    commands = getattr(ctx.find_root().command, "commands", {})
    known = {command: _options_of(those) for command, those in commands.items()}
    return explain_option(name, str(ctx.command.name), known | {str(ctx.command.name): own})


def flag_of(ctx: click.Context, name: str, others: Collection[str]) -> str | None:
    """Return the flag that a name stands for, unless it also stands for one of `others`."""
    ours = None if own_option(name, others) else own_option(name, _options_of(ctx.command))
    return ours and f"--{ours.replace('_', '-')}"


@contextlib.contextmanager
def explaining_options(ctx: click.Context, args: list[str]) -> Iterator[None]:
    """Add to the error about an unknown option what bertaccum has instead, if that is known."""
    try:
        yield
    except click.NoSuchOption as error:
        # Click reads -lr as several one-letter options.
        words = (word for word in args if word.startswith(error.option_name))
        name = next(words, error.option_name).partition("=")[0]
        if not (explained := explained_option(ctx, name, _options_of(ctx.command))):
            raise
        text = f"No such option {name!r}: {with_flags(explained)}"
        raise click.NoSuchOption(name, text, ctx=ctx) from None


class Command(click.Command):
    """A command with grouped options. An option that takes a value can be given only once."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        parameters = super().get_params(ctx)
        return [*parameters, _help_all(ctx)] if len(parameters) > _LONG else parameters

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section per group of options; a command with few options has one section.

        A long command has one section with the beginning of the help for each main option.
        """
        parameters = self.get_params(ctx)
        if len(parameters) > _LONG and _ALL not in ctx.meta:
            main = (p.get_help_record(ctx) for p in parameters if _flag(p) in _MAIN)
            with formatter.section("Main options"):
                formatter.write_dl([(row[0], _first_clause(row[1])) for row in main if row])
            return None
        groups = {getattr(parameter, "group", None) for parameter in parameters}
        if groups <= {None, OUTPUT}:
            return super().format_options(ctx, formatter)
        for group in (None, *GROUPS):
            members = (p for p in parameters if getattr(p, "group", None) == group)
            if rows := [row for p in members if (row := p.get_help_record(ctx))]:
                with formatter.section(group or "Options"):
                    formatter.write_dl(rows)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with explaining_options(ctx, args):
            return self._parse_args(ctx, args)

    def _parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _, left, named = self.make_parser(ctx).parse_args(list(args))
            ctx.meta[FLAGS] = {parameter.name for parameter in named}
            names = {parameter.name for parameter in self.params}
            takes_only_option = "run" in names and "argument" not in names
            if left and takes_only_option and RunPaths(Path(left[0])).config.is_file():
                raise click.UsageError(f"pass the run with --run {left[0]}", ctx)
            for option in named:
                # Click would keep the last value and silently drop the others.
                if named.count(option) > 1 and not _is_repeatable(option):
                    flag = max(option.opts, key=len)
                    raise click.UsageError(f"{flag} is given more than once; give it once", ctx)
        return super().parse_args(ctx, args)


def _flag(parameter: click.Parameter) -> str:
    return max(parameter.opts, key=len).strip("-").replace("-", "_")


def _help_all(ctx: click.Context) -> click.Option:
    """Return the option that shows the help with all options."""

    def show_all(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
        if asked and not ctx.resilient_parsing:
            ctx.meta[_ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show_all,
        help=f"Show all options of {ctx.command_path} and exit.",
    )


def _first_clause(help_text: str) -> str:
    """Return the beginning of an option's help, and its default value."""
    first = re.split(r"[.;] |\.$|  \[| \[default", help_text)[0]
    default = re.search(r"\[(default: [^];]*)", help_text)
    return f"{first}." + (f" [{default[1]}]" if default else "")


def _options_of(command: click.Command) -> set[str]:
    """Return the names of a command's options, as other programs could write them."""
    flags = (flag for option in command.params for flag in option.opts if flag.startswith("--"))
    return {flag.strip("-").replace("-", "_") for flag in flags}


def _is_repeatable(option: click.Parameter) -> bool:
    return not isinstance(option, click.Option) or option.multiple or option.is_flag or option.count


# Returns a decorator that makes a function a command, as `click.command` does.
command = functools.partial(click.command, cls=Command)


class Number(click.ParamType):
    """A parameter type for a configuration field whose value is a number or the word auto.

    The type converts text to a number; the field's metadata define which numbers are valid.
    """

    def __init__(self, field: dataclasses.Field[Any], kinds: set[type]) -> None:
        self._field, self._kinds = field, kinds
        self.valid: Numbers = field.metadata["numbers"]
        if self.valid.fraction:
            self.name = "updates|epochs"
            self._meaning = "a number of updates (such as 200) or of epochs (such as 0.25)"
        elif str in kinds:
            self.name, self._meaning = f"integer|{AUTO}", f"{AUTO} or a whole number"
        elif int in kinds:
            self.name, self._meaning = "integer", "a whole number"
        else:
            self.name, self._meaning = "float", "a number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | float | str:
        number = value if value == AUTO and str in self._kinds else self._number(value)
        if number is None:
            self.fail(f"{value!r} is not {self._meaning}", param, ctx)
        if problem := problem_of(self._field, number):
            self.fail(f"{value} {problem}", param, ctx)
        return number

    def _number(self, value: Any) -> int | float | None:
        for kind in (int, float):
            if kind in self._kinds:
                if kind is float and self.valid.fraction and "." not in str(value):
                    return None  # 1e3 could mean updates or epochs.
                with contextlib.suppress(ValueError):
                    return kind(str(value))
        return None


class RunFolder(click.Path):
    """A parameter type for a run folder: a link such as `runs/latest` becomes its target.

    A command uses the folder several times, and the link changes when another run starts.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(target_of(Path(value)))


def options(
    config: type, hidden: Collection[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds one Click option per field of a configuration dataclass.

    Args:
      hidden: Names of the fields without an option.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        hints = typing.get_type_hints(config)
        for field in reversed(dataclasses.fields(config)):
            if field.name not in hidden:
                command = _option(field, hints[field.name])(command)
        return command

    return decorate


def _option(field: dataclasses.Field[Any], hint: Any) -> Callable[..., Any]:
    flag = "--" + field.name.replace("_", "-")
    settings: dict[str, Any] = {
        "cls": FieldOption,
        "group": field.metadata["group"],
        "default": field.default,
        "help": with_flags(field.metadata["help"]),
    }
    if hint is bool:
        return click.option(flag, is_flag=True, **settings)
    if field.metadata["switch"]:
        return click.option(f"{flag}/--no-{flag[2:]}", **settings)
    shown = field.default is not None
    return click.option(flag, type=_option_type(field, hint), show_default=shown, **settings)


def _option_type(field: dataclasses.Field[Any], hint: Any) -> Any:
    kinds = set(typing.get_args(hint)) or {hint}
    if field.metadata["choices"]:
        return click.Choice(field.metadata["choices"])
    if kinds & {int, float}:
        return Number(field, kinds)
    if field.name == "run":
        return RunFolder()
    return click.Path() if field.metadata["path"] else click.STRING


def is_named(name: str) -> bool:
    """Return whether the user set an option, with a flag or in the `--config` file."""
    sources = click.core.ParameterSource
    source = click.get_current_context().get_parameter_source(name)
    return source in (sources.COMMANDLINE, sources.DEFAULT_MAP)


def run_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument RUN, a shorter form of `--run`."""

    @click.argument("argument", type=RunFolder(), metavar="[RUN]", required=False)
    @functools.wraps(command)
    def wrapped(argument: str | None, run: str, **options: Any) -> Any:
        if argument is not None and is_named("run"):
            what = f"RUN {argument} and --run {run} both name the run"
            raise ConfigError(what, "omit one of the two")
        return command(run=run if argument is None else argument, **options)

    return wrapped


json_option = _output_option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def shown(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that control what is shown on stderr, and pass a `view` to the command."""

    @_output_option("--quiet", "-q", is_flag=True, help="Show only errors and results.")
    @_output_option(
        "--verbose",
        "-v",
        is_flag=True,
        help="Show TensorFlow's log and Python's warnings as they occur.",
    )
    @_output_option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Format of the messages on stderr. json: one JSON record per line.",
    )
    @_output_option(
        "--log-every",
        type=click.FloatRange(min=0),
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="Minimum time between progress lines or records; a terminal shows live progress"
        " instead of lines.",
    )
    @functools.wraps(command)
    def wrapped(
        quiet: bool, verbose: bool, log_format: str, log_every: float, **options: Any
    ) -> Any:
        if quiet and verbose:
            raise click.UsageError("--quiet and --verbose contradict each other; omit one")
        # bertaccum uses tf_keras. With this variable, TensorFlow does not also import Keras 3,
        # which takes two seconds.
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
        if not verbose and "TF_CPP_MIN_LOG_LEVEL" not in os.environ:  # The user can set it.
            os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
            logging.getLogger("tensorflow").setLevel(logging.ERROR)
        view = make_view(quiet, log_format, log_every, verbose)
        click.get_current_context().obj.append(view)  # `main` shows errors through this view.
        return command(view=view, **options)

    return wrapped


def make_view(quiet: bool, log_format: str, seconds: float, verbose: bool = False) -> View:
    """Return the view that suits the options and stderr."""
    from bertaccum.cli.display.terminal_view import Live

    if log_format == "json":
        return Records(seconds, verbose, quiet)
    if quiet:
        return View(verbose)
    # On a terminal of size 0, rich shows nothing.
    if sys.stderr.isatty() and min(os.get_terminal_size(sys.stderr.fileno())) > 0:
        return Live(verbose=verbose)
    return Lines(seconds, verbose)
