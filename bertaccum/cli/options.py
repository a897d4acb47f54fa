"""Command-line options out of configuration dataclasses, and those that all commands share."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import sys
import typing
from collections.abc import Callable
from typing import Any

import click

from bertaccum.cli.display.sentences import with_flags
from bertaccum.errors import ConfigError
from bertaccum.settings import AUTO, problem_of

if typing.TYPE_CHECKING:
    from bertaccum.cli.display.view import View


class Command(click.Command):
    """A command that refuses an option with one value if it is given twice."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            _, _, named = self.make_parser(ctx).parse_args(list(args))
            for option in named:
                # The last value would win, and the others would be lost without a word.
                if named.count(option) > 1 and not _is_repeatable(option):
                    flag = max(option.opts, key=len)
                    raise click.UsageError(f"{flag} is given more than once; give it once", ctx)
        return super().parse_args(ctx, args)


def _is_repeatable(option: click.Parameter) -> bool:
    return not isinstance(option, click.Option) or option.multiple or option.is_flag or option.count


def command(name: str | None = None, **settings: Any) -> Callable[..., Any]:
    """Make a command of the program, as `click.command` does."""
    return click.command(name, cls=Command, **settings)


class Number(click.ParamType):
    """A number, or a word such as auto, for a field of a configuration.

    Text becomes a number here; whether it is valid the field says.

    Attributes:
      takes_floats: whether a number may have a fractional part.
    """

    def __init__(self, field: dataclasses.Field[Any], kinds: set[type]) -> None:
        self._field, self._kinds = field, kinds
        self.takes_floats = float in kinds
        if field.metadata["fraction"]:
            self.name = "updates|epochs"
            self._meaning = "a number of updates, such as 200, or of epochs, such as 0.25"
        elif str in kinds:
            self.name, self._meaning = f"integer|{AUTO}", f"{AUTO} or a whole number"
        elif int in kinds:
            self.name, self._meaning = "integer", "a whole number"
        else:
            self.name, self._meaning = "float", "a number"

    @property
    def range(self) -> str:
        """The valid numbers, as `1<=x<=9`."""
        known = self._field.metadata
        sign = "<" if known["exclusive"] else "<="
        if known["maximum"] is not None:
            return f"{known['minimum']}{sign}x{sign}{known['maximum']}"
        return f"x{sign.replace('<', '>')}{known['minimum']}"

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
                with contextlib.suppress(ValueError):
                    return kind(str(value))
        return None


class FieldOption(click.Option):
    """An option whose help shows the range of its number."""

    def get_help_extra(self, ctx: click.Context) -> Any:
        extra = super().get_help_extra(ctx)
        return extra | {"range": self.type.range} if isinstance(self.type, Number) else extra


def options(config: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds one Click option for every field of a configuration dataclass."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        hints = typing.get_type_hints(config)
        for field in reversed(dataclasses.fields(config)):
            command = _option(field, hints[field.name])(command)
        return command

    return decorate


def _option(field: dataclasses.Field[Any], hint: Any) -> Callable[..., Any]:
    flag = "--" + field.name.replace("_", "-")
    help = with_flags(field.metadata["help"])
    if hint is bool:
        return click.option(flag, is_flag=True, default=field.default, help=help)
    if field.metadata["switch"]:
        flag = f"{flag}/--no-{flag[2:]}"
        return click.option(flag, default=field.default, help=help)
    return click.option(
        flag,
        cls=FieldOption,
        type=_option_type(field, hint),
        default=field.default,
        show_default=field.default is not None,
        help=help,
    )


def _option_type(field: dataclasses.Field[Any], hint: Any) -> Any:
    kinds = set(typing.get_args(hint)) or {hint}
    if field.metadata["choices"]:
        return click.Choice(field.metadata["choices"])
    if kinds & {int, float}:
        return Number(field, kinds)
    return click.Path() if field.metadata["path"] else click.STRING


def is_named(ctx: click.Context, name: str) -> bool:
    """Whether an option was given, by a flag or a file."""
    sources = click.core.ParameterSource
    return ctx.get_parameter_source(name) in (sources.COMMANDLINE, sources.DEFAULT_MAP)


def run_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the argument RUN, a shorter way to name what `--run` names.

    Raises:
      ConfigError: both are given.
    """

    @click.argument("argument", type=click.Path(), metavar="[RUN]", required=False)
    @click.pass_context
    @functools.wraps(command)
    def wrapped(
        ctx: click.Context, *arguments: Any, argument: str | None, run: str, **options: Any
    ) -> Any:
        if (
            argument is not None
            and ctx.get_parameter_source("run") is click.core.ParameterSource.COMMANDLINE
        ):
            raise ConfigError(f"RUN {argument} and --run {run} both name the run", "drop one")
        return command(*arguments, run=argument or run, **options)

    return wrapped


json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def shown(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that say how progress is shown; the command gets a `view`."""

    @click.option("--quiet", "-q", is_flag=True, help="Show errors and results only.")
    @click.option(
        "--verbose",
        "-v",
        is_flag=True,
        help="Show what TensorFlow logs and Python warns of; otherwise only if the run fails.",
    )
    @click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="How progress is written to stderr; json: a record a line.",
    )
    @click.option(
        "--log-every",
        type=click.FloatRange(min=0),
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="Time between lines of progress, where stderr is no terminal.",
    )
    @click.pass_context
    @functools.wraps(command)
    def wrapped(
        ctx: click.Context,
        quiet: bool,
        verbose: bool,
        log_format: str,
        log_every: float,
        *arguments: Any,
        **options: Any,
    ) -> Any:

        if quiet and verbose:
            raise click.UsageError("--quiet and --verbose contradict each other; drop one")
        # TensorFlow then does not import Keras 3, which takes two seconds; tf_keras is used here.
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
        if not verbose:
            quiet_tensorflow()
        view = make_view(quiet, log_format, log_every, verbose)
        ctx.obj.append(view)  # Errors are shown by it, too.
        return command(*arguments, view=view, **options)

    return wrapped


def make_view(quiet: bool, log_format: str, seconds: float, verbose: bool = False) -> View:
    """The view that the options ask for, and stderr is fit for.

    Args:
      quiet: errors only.
      log_format: text or json.
      seconds: between lines of progress, where there is no terminal.
      verbose: Show what others write on stderr.
    """
    from bertaccum.cli.display.log_views import Lines, Records
    from bertaccum.cli.display.terminal_view import Live
    from bertaccum.cli.display.view import View

    if quiet:
        return View(verbose)
    if log_format == "json":
        return Records(seconds, verbose)
    return Live(verbose=verbose) if sys.stderr.isatty() else Lines(seconds, verbose)


def quiet_tensorflow() -> None:
    """Keeps TensorFlow's chatter off the screen, unless the user asked for it."""
    if "TF_CPP_MIN_LOG_LEVEL" not in os.environ:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
