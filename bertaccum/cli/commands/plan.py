"""`bertaccum plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bertaccum import api
from bertaccum.cli.config_file import config_option
from bertaccum.cli.options import command, json_option, options, shown
from bertaccum.cli.shared import give
from bertaccum.config import PlanConfig, StepConfig, TrainConfig
from bertaccum.settings import field_names

if TYPE_CHECKING:
    from bertaccum.cli.display.view import View

# What a recipe of train says beyond a step; the folder that it names is not plan's file.
_RECIPE_ONLY = frozenset(field_names(TrainConfig) - field_names(StepConfig))


@command()
@config_option(others=_RECIPE_ONLY)
@options(PlanConfig)
@json_option
@shown
def plan(view: View, as_json: bool, **values: Any) -> None:
    """Measure which micro-batch is the fastest that fits.

    Training steps are run in a process of their own. `bertaccum train --micro-batch auto` does
    the same by itself; what was measured is kept and taken again.

    \b
    Examples:
      bertaccum plan
      bertaccum plan --model bert-base --max-seq-length 512 --device-memory 4GiB
      bertaccum plan --config configs/bert-base-4gb.yaml --device-memory 4GiB --json
    """
    with view:
        found = api.plan(progress=view, **values)
    give(as_json, found.values, lambda tables: tables.planned(found, values["out"]))
    found.taken()
