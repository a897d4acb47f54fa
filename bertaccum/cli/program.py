"""The program `bertaccum`: its commands, and the handling of all errors.

`bertaccum --help` does not import tensorflow, pandas or rich. `main` turns each error into one
line and an exit code: 1 for a failed run, 2 for wrong usage, configuration or input.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence

import click

from bertaccum.cli.commands.inference import evaluate, export, predict
from bertaccum.cli.commands.installation import doctor, models
from bertaccum.cli.commands.launch import launch
from bertaccum.cli.commands.plan import plan
from bertaccum.cli.commands.prepare import prepare
from bertaccum.cli.commands.pretrain import pretrain
from bertaccum.cli.commands.runs import advise, compare, make_page, runs, show
from bertaccum.cli.commands.serve import serve
from bertaccum.cli.commands.sweep import sweep
from bertaccum.cli.commands.train import train
from bertaccum.cli.display import sentences
from bertaccum.cli.display.view import View
from bertaccum.cli.options import explaining_options
from bertaccum.cli.shared import fail
from bertaccum.errors import LostWorkerError, explained
from bertaccum.options.other_names import explain_command
from bertaccum.system.stopping import Terminated, terminating
from bertaccum.version import __version__

# The commands of a first session, in the order of use; the help lists them before all others.
_FIRST_COMMANDS = ("prepare", "train", "eval", "predict")


class Program(click.Group):
    """The group of all commands. Its help starts with the commands of a first session."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with explaining_options(ctx, list(args)):
            return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and (other := explain_command(args[0])):
            raise click.UsageError(f"No such command {args[0]!r}: {other}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        others = [name for name in self.list_commands(ctx) if name not in _FIRST_COMMANDS]
        width = max(map(len, self.commands))
        limit = formatter.width - 6 - width
        for heading, names in (("First steps", _FIRST_COMMANDS), ("Other commands", others)):
            rows = [(f"{n:{width}}", self.commands[n].get_short_help_str(limit)) for n in names]
            with formatter.section(heading):
                formatter.write_dl(rows)


def _show_versions(ctx: click.Context, option: click.Parameter, asked: bool) -> None:
    """Print the versions without importing TensorFlow, which takes seconds."""
    if not asked or ctx.resilient_parsing:
        return
    import platform

    from bertaccum.inspection.installation import installed

    version = installed("tensorflow") or "not installed"
    python = platform.python_version()
    sentences.result(f"bertaccum {__version__} (tensorflow {version}, Python {python})")
    ctx.exit()


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_versions,
    help="Show the versions of bertaccum, TensorFlow and Python, and exit.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Fine-tune BERT at the recommended batch size on a small GPU.

    Each update uses --target-batch examples (the last one of an epoch may use fewer). They are
    split into micro-batches that fit in memory, and the gradients are accumulated exactly.

    \b
      bertaccum prepare
      bertaccum train --target-batch 32 --micro-batch 8
      bertaccum eval
      bertaccum predict "The food was great."

    Results go to stdout, everything else to stderr. Exit codes: 0 success; 1 failed run; 2 wrong
    usage, configuration or input; 130 stopped by SIGINT (Ctrl-C); 143 stopped by SIGTERM.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for _command in (
    *(prepare, plan, pretrain, train, sweep, launch, evaluate, predict),
    *(models, runs, show, compare, advise, make_page, export, serve, doctor),
):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program, and turn every error into one line and an exit code."""
    views: list[View] = []
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # It was closed at the start; output is lost.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # A file name may not be UTF-8.
    try:
        with terminating():
            sys.exit(cli.main(arguments, standalone_mode=False, obj=views))
    except LostWorkerError as error:
        # Here, where the traceback still holds TensorFlow's objects: freeing them can abort.
        fail(str(error), error.exit_code, views[-1] if views else None, os._exit)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = f"; see `{context.command_path} --help`" if context else ""
        message = " ".join(error.format_message().split()).rstrip(".") + where
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):  # Click turns Ctrl-C at a prompt into Abort.
        message, code = "interrupted", 128 + signal.SIGINT
    except Terminated:
        message, code = "terminated", 128 + signal.SIGTERM
    except Exception as error:
        known = explained(error)
        message, code = str(known), known.exit_code
    fail(message, code, views[-1] if views else None)
