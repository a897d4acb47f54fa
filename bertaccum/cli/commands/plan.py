"""`bertaccum plan`."""

from __future__ import annotations

from typing import Any

from bertaccum import api
from bertaccum.cli.config_file import config_option
from bertaccum.cli.display.plan_tables import print_cards, print_plan
from bertaccum.cli.display.view import View
from bertaccum.cli.options import command, grouped_option, json_option, options, shown
from bertaccum.cli.shared import print_result
from bertaccum.options.cards import CARDS
from bertaccum.options.commands import OUTPUT, PlanConfig, StepConfig, TrainConfig
from bertaccum.options.fields import field_names

# Options of `train` that `plan` ignores in a recipe. One of them is `out`: for `train` it is a
# run folder, for `plan` a file.
_RECIPE_ONLY = frozenset(field_names(TrainConfig) - field_names(StepConfig))


@command()
@config_option(lambda key, _: key in _RECIPE_ONLY, again=True)
@options(PlanConfig)
@grouped_option(
    "--all",
    "show_all",
    is_flag=True,
    group=OUTPUT,
    help="Print all candidates, not only the chosen one and those next to it.",
)
@json_option
@shown
def plan(view: View, as_json: bool, show_all: bool, **values: Any) -> None:
    """Find the fastest micro-batch size that fits in memory.

    A separate process runs training steps and measures their memory and speed. `bertaccum train
    --micro-batch auto` plans in the same way. Measurements are cached for later runs. For a GPU
    that is not in this machine, the speed is calculated.

    \b
    Examples:
      bertaccum plan
      bertaccum plan --card list
      bertaccum plan --model bert-base --max-seq-length 512 --card gtx-1050-ti
      bertaccum plan --config configs/bert-base-4gb.yaml --card gtx-1050-ti --json
    """
    if values["card"] == "list":
        print_cards(CARDS.values(), as_json)
        return
    with view:
        result = api.plan(progress=view, **values)
    print_result(as_json, result.values, lambda _: print_plan(result, values["out"], show_all))
    result.require_plan()
