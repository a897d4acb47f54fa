"""The command line: the program, and where every error ends.

It stays light: `bertaccum --help` loads neither tensorflow nor pandas. Errors end here, as one line
and an exit code: 0 done, 1 the run failed, 2 usage, configuration or input.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from bertaccum.cli.commands.compare import compare
from bertaccum.cli.commands.evaluate import evaluate
from bertaccum.cli.commands.export import export
from bertaccum.cli.commands.launch import launch
from bertaccum.cli.commands.plan import plan
from bertaccum.cli.commands.predict import predict
from bertaccum.cli.commands.prepare import prepare
from bertaccum.cli.commands.report import make_page
from bertaccum.cli.commands.runs import runs, show
from bertaccum.cli.commands.train import train
from bertaccum.cli.display import sentences
from bertaccum.cli.shared import fail
from bertaccum.errors import BertAccumError, LostWorkerError
from bertaccum.stopping import Terminated, terminating
from bertaccum.version import __version__

if TYPE_CHECKING:
    from bertaccum.cli.display.view import View


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.version_option(__version__, message="bertaccum %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Fine-tune BERT at the recommended batch size on a small GPU.

    Every update is computed from exactly --target-batch examples; what fits in memory at
    once only decides how they are cut into micro-batches.

    \b
      bertaccum prepare
      bertaccum train --target-batch 32 --micro-batch 8
      bertaccum eval
      bertaccum predict "The food was great."

    Results go to stdout, all else to stderr. Exit codes: 0 done, 1 the run failed, 2 usage,
    configuration or input, 130 and 143 stopped by SIGINT (Ctrl-C) and SIGTERM.
    """
    if ctx.invoked_subcommand is None:
        sentences.result(ctx.get_help())


for _command in (
    *(prepare, plan, train, launch, evaluate, predict),
    *(runs, show, compare, make_page, export),
):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program; every error becomes one line and an exit code."""
    views: list[View] = []
    try:
        with terminating():
            sys.exit(cli.main(arguments, standalone_mode=False, obj=views))
    except LostWorkerError as error:
        # Here, where the traceback still holds TensorFlow's objects: freeing them can abort.
        fail(str(error), error.exit_code, views[-1] if views else None, os._exit)
    except BertAccumError as error:
        message, code = str(error), error.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = f"; see `{context.command_path} --help`" if context else ""
        message = " ".join(error.format_message().split()).rstrip(".") + where
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):  # Click makes the second of the first.
        message, code = "interrupted", 128 + signal.SIGINT
    except Terminated:
        message, code = "terminated", 128 + signal.SIGTERM
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        message, code = f"{where}{error.strerror or error}; check permissions and free space", 1
    except Exception as error:
        if os.environ.get("BERTACCUM_TRACEBACK"):
            raise
        message = (
            f"unexpected {type(error).__name__}: {error}; set BERTACCUM_TRACEBACK=1 to see where,"
            " and report it"
        )
        code = 1
    fail(message, code, views[-1] if views else None)
