"""`bertaccum launch`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from bertaccum.cli.display import sentences
from bertaccum.cli.options import command
from bertaccum.errors import ConfigError


@command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--workers",
    type=click.IntRange(min=2),
    metavar="INTEGER",
    required=True,
    help="Number of worker processes.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def launch(workers: int, command: tuple[str, ...]) -> None:
    """Train with several workers on this machine.

    COMMAND is train with its options, or your own Python file. Each worker is a process of its own;
    the workers communicate over free ports of the loopback interface. Each line on stderr begins
    with the worker's number; on stdout, only the output of worker 0 appears. If a worker fails, all
    are stopped. A train command that is run again resumes from the last checkpoint.

    In each worker, TF_CONFIG contains the worker's number and the addresses of all workers. A
    MultiWorkerMirroredStrategy in your own Python file reads it.

    \b
    Examples:
      bertaccum launch --workers 2 -- train --target-batch 32 --out runs/together
      bertaccum launch --workers 2 -- mine.py --epochs 3
    """
    from bertaccum.distribution import launcher
    from bertaccum.system.cache import prepare_cache

    if command[0] != "train" and not launcher.is_file(command[0]):
        raise click.UsageError(f"launch starts train or a Python file, not {command[0]}")
    if launcher.is_file(command[0]) and not Path(command[0]).is_file():
        raise ConfigError(f"{command[0]} is not a file", "pass train or an existing Python file")
    prepare_cache(lambda line, *_: sentences.note(line))
    sys.exit(launcher.launch(workers, command))
