"""`bertaccum runs` and `bertaccum show`: the contents of run folders."""

from __future__ import annotations

from pathlib import Path

import click

from bertaccum.cli.display import run_tables, sentences
from bertaccum.cli.options import command, json_option, options, run_argument
from bertaccum.cli.shared import print_result
from bertaccum.errors import InputError
from bertaccum.options.commands import ShowConfig
from bertaccum.runs.paths import RunPaths
from bertaccum.runs.record import find_runs, read_record


@command()
@click.argument("folder", type=click.Path(), default="runs")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON record for each run.")
def runs(folder: str, as_json: bool) -> None:
    """List the runs in a folder with their status and best dev score.

    \b
    Examples:
      bertaccum runs
      bertaccum runs experiments --json
    """
    from bertaccum.reporting.run_outline import outline

    outlines, errors = [], []
    for path in find_runs(Path(folder)):
        try:
            outlines.append(outline(read_record(path)))
        except InputError as damage:
            errors.append(damage)
    if not outlines and not errors:
        sentences.note(_none_in(Path(folder)))
    elif as_json:
        for one in outlines:
            sentences.result_json(one, indent=None)
    else:
        run_tables.print_runs(outlines)
    for error in errors:
        sentences.note(sentences.with_flags(f"not listed: {error}"))


def _none_in(folder: Path) -> str:
    """Return the message for a folder without runs; it names a subfolder with runs, if any."""
    if RunPaths(folder).config.is_file():
        return f"{folder} is a run folder; try `bertaccum show {folder}`"
    below = RunPaths(folder / "*/*").config.relative_to(folder)
    near = min((path.parent.parent for path in folder.glob(str(below))), default=None)
    return f"no runs in {folder}" + (f"; try `bertaccum runs {near}`" if near else "")


@command()
@run_argument
@options(ShowConfig)
@json_option
def show(run: str, as_json: bool) -> None:
    """Show the plan, progress, evaluations and options of a run.

    RUN is the run folder; it is a shorter form of --run.

    \b
    Examples:
      bertaccum show
      bertaccum show --run runs/20260102-030405 --json
    """
    from bertaccum.reporting.run_outline import details
    from bertaccum.runs.record import undamaged

    with undamaged(Path(run)):
        print_result(as_json, details(read_record(Path(run))), run_tables.print_run)
