"""`bertaccum launch`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from bertaccum.cli.options import command
from bertaccum.errors import ConfigError


@command(context_settings={"ignore_unknown_options": True})
@click.option("--workers", type=click.IntRange(min=2), required=True, help="How many processes.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def launch(workers: int, command: tuple[str, ...]) -> None:
    """Train with several workers on this machine.

    They are processes that talk over the loopback interface, on ports that are free. Each line
    on stderr begins with its worker's number; stdout is the first one's. If one fails, all are
    ended; the same `train`, started again, goes on from the last saved state.

    A Python file of your own is told its place in TF_CONFIG, as MultiWorkerMirroredStrategy reads
    it.

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
        raise ConfigError(f"{command[0]} is no file", "name a Python file, or train")
    sys.exit(run(workers, command))
