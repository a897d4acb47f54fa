"""`bertaccum eval`."""

from __future__ import annotations

from typing import Any

import click

from bertaccum import api
from bertaccum.cli.display.tables import print_evaluation
from bertaccum.cli.display.view import View
from bertaccum.cli.options import command, json_option, options, shown
from bertaccum.cli.shared import announce_run, announce_split, print_result
from bertaccum.options.commands import EvalConfig


@command("eval")
@options(EvalConfig)
@click.option(
    "--results",
    type=click.Path(),
    metavar="FILE",
    help="Write the scores to FILE, formatted like run_classifier's eval_results.txt.",
)
@json_option
@shown
def evaluate(view: View, results: str | None, as_json: bool, **values: Any) -> None:
    """Evaluate the best model of a run.

    \b
    Examples:
      bertaccum eval
      bertaccum eval --run runs/20260102-030405 --split dev
      bertaccum eval --file mine.csv --text-column body --label-column stars --json
      bertaccum eval --split dev --results eval_results.txt
    """
    from bertaccum.cli.display.run_classifier_files import (
        check_results,
        results_file,
        write_evaluation,
    )

    check_results(results)
    with view:
        record = announce_run(view, values["run"])
        if values["file"] is None:
            values["split"] = announce_split(view, record, values["split"])
        result = api.evaluate(progress=view, note=view.note, keep=False, **values)
    # Show the result first, because writing a file may fail.
    from bertaccum.inference.evaluate import write_evaluation as keep

    print_result(as_json, result.record(), print_evaluation)
    with results_file(results) as file:
        if file is not None:
            write_evaluation(file, result.record())
    keep(EvalConfig(**values), result)
