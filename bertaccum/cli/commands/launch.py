"""`bertaccum launch`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from bertaccum.cli.options import command
from bertaccum.errors import ConfigError


@command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--workers", type=click.IntRange(min=2), required=True, help="Number of worker processes."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def launch(workers: int, command: tuple[str, ...]) -> None:
    """Train with several workers on this machine.

    Each worker is a process; they communicate over the loopback interface, on free ports. Each
    line on stderr begins with the number of its worker; stdout shows worker 0. If a worker fails,
    all are stopped; run the same command again to resume from the last checkpoint.

    Your own Python file gets its place in TF_CONFIG, the variable that
    MultiWorkerMirroredStrategy reads.

    \b
    Examples:
      bertaccum launch --workers 2 -- train --target-batch 32 --out runs/together
      bertaccum launch --workers 2 -- mine.py --epochs 3
    """
    from bertaccum.distribution.launcher import is_file
    from bertaccum.distribution.launcher import launch as run

    if command[0] != "train" and not is_file(command[0]):
        raise click.UsageError(f"launch starts train or a Python file, not {command[0]}")
    if is_file(command[0]) and not Path(command[0]).is_file():
        raise ConfigError(f"{command[0]} is not a file", "name a Python file, or train")
    sys.exit(run(workers, command))
