"""`bertaccum sweep`: a grid search over options."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

import click

from bertaccum import api
from bertaccum.cli.config_file import Grid, config_option, grid_option
from bertaccum.cli.display import sentences
from bertaccum.cli.display.comparison_tables import print_sweep
from bertaccum.cli.display.view import View
from bertaccum.cli.options import (
    FLAGS,
    command,
    grouped_option,
    is_named,
    json_option,
    options,
    shown,
)
from bertaccum.cli.shared import fail, print_result, stopping_with
from bertaccum.errors import ConfigError
from bertaccum.options.commands import OPTIMIZATION, PAPER, TrainConfig
from bertaccum.training.events import Event, Started, Stopped


@command()
@config_option(again=True)
@grid_option
@options(TrainConfig)
@grouped_option(
    "--seeds",
    group=OPTIMIZATION,
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="INTEGER",
    help="Number of runs for each combination of values, each with its own seed.",
)
@grouped_option(
    "--halving",
    group=OPTIMIZATION,
    is_flag=True,
    help="Successive halving: train all combinations to a ninth of their updates, the best third of"
    " them to a third, and the best third of these to the end.",
)
@json_option
@shown
def sweep(
    view: View, as_json: bool, grid: Grid | None, seeds: int, halving: bool, **values: Any
) -> None:
    """Train with all combinations of values in a grid, and rank them.

    The runs are written to subfolders of --out. Repeat the command to resume a stopped sweep.
    Combinations whose runs fail are listed and skipped.

    \b
    Examples:
      bertaccum sweep --config configs/cola.yaml --out runs/cola --seeds 3 --halving
      bertaccum sweep --grid grid.yaml --out runs/mine --max-updates 500

    A grid file contains a list of values for each option, such as `learning_rate: [5e-5, 2e-5]`.
    """
    named = {name: value for name, value in values.items() if is_named(name)}
    TrainConfig(**named)  # Report invalid options before TensorFlow is imported.
    _refuse_flags_in(PAPER if grid is None else grid)
    stopped: list[Stopped] = []

    def show(event: Event) -> None:
        if isinstance(event, Started):
            view.note(f"{event.folder.parent.name}: {event.folder.name}")
        if isinstance(event, Stopped):
            stopped.append(event)
        view.event(event)

    with view, stopping_with(view) as stopping:
        view.note("loading data and model")
        result = api.sweep(
            grid,
            seeds=seeds,
            halving=halving,
            callback=show,
            progress=view,
            stopping=stopping,
            **named,
        )
    if stopped:
        message = sentences.stopped(stopped[0], again=True)
        fail(message, 128 + stopped[0].signal, view)
    print_result(as_json, result, lambda _: print_sweep(result, _best(named, result)))
    if result["best"] is None:
        fail("every run failed; repeat the sweep when the cause is removed", 1, view)


def _refuse_flags_in(grid: Grid) -> None:
    """Raise ConfigError if a flag sets what the grid replaces; it may replace a recipe's values."""
    if both := click.get_current_context().meta[FLAGS] & grid.keys():
        name = min(both)
        values = f"the grid has {name}: {', '.join(map(str, grid[name]))}"
        remedy = f"omit it, or pass a grid of your own without {name}"
        raise ConfigError(f"`{name}` has no effect, because {values}", remedy)


def _best(named: dict[str, Any], result: dict[str, Any]) -> str:
    """Return the command that trains with the best values; empty if all runs failed."""
    if result["best"] is None:
        return ""
    values = {name: value for name, value in named.items() if name != "out"} | result["best"]
    switches = {f.name for f in dataclasses.fields(TrainConfig) if f.metadata["switch"]}
    words = ["bertaccum", "train"]
    for name, value in values.items():
        flag = name.replace("_", "-")
        if value is True or (value is False and name in switches):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None and value is not False:
            words += [f"--{flag}", str(value)]
    return shlex.join(words)
