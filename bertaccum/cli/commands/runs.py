"""`bertaccum runs`, `show`, `advise`, `compare` and `report`: what run folders say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bertaccum import api
from bertaccum.cli.display import run_tables, sentences
from bertaccum.cli.display.comparison_tables import print_advice, print_comparison
from bertaccum.cli.display.view import View
from bertaccum.cli.options import command, json_option, options, run_argument, shown
from bertaccum.cli.shared import announce_run, announce_split, print_result
from bertaccum.errors import InputError, explained
from bertaccum.options.commands import CompareConfig, ReportConfig, ShowConfig
from bertaccum.options.metrics import warning
from bertaccum.runs.paths import RunPaths
from bertaccum.runs.record import find_runs, read_record, undamaged


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
    from bertaccum.reporting.run_summaries import outline

    outlines, errors = [], []
    for path in find_runs(Path(folder)):
        try:
            outlines.append(outline(read_record(path)))
        except (InputError, OSError) as problem:
            errors.append(explained(problem))
    if not outlines and not errors:
        sentences.note(_none_in(Path(folder)))
    elif as_json:
        for one in outlines:
            sentences.result_json(one, indent=None)
    elif outlines:
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
    from bertaccum.reporting.run_summaries import details

    with undamaged(Path(run)):
        print_result(as_json, details(read_record(Path(run))), run_tables.print_run)


@command()
@run_argument
@options(ShowConfig)
@json_option
def advise(run: str, as_json: bool) -> None:
    """Suggest a target batch from the gradients of a run.

    RUN is the run folder; it is a shorter form of --run. The advice uses the gradient noise scale,
    which training estimates. Up to about this batch size, doubling the batch nearly halves the
    number of updates.

    \b
    Examples:
      bertaccum advise
      bertaccum advise runs/20260102-030405 --json
    """
    from bertaccum.reporting.batch_advice import advice

    record = read_record(Path(run))
    with undamaged(Path(run)):
        found, doubt = advice(record), warning(record.best or {})
    print_result(as_json, found, print_advice)
    if doubt:
        sentences.note(f"note: {doubt}, so another learning rate matters more than the batch")


@command()
@click.argument("runs", type=click.Path(), nargs=-1, required=True)
@options(CompareConfig)
@json_option
def compare(as_json: bool, runs: tuple[str, ...], **values: Any) -> None:
    """Draw the curves of several runs and list how the runs differ.

    The horizontal axis counts examples seen, not updates, so that runs with different target
    batches can be compared. Runs may still be in progress.

    \b
    Examples:
      bertaccum compare runs/batch-8 runs/batch-32
      bertaccum compare runs/2026* --out figures --smooth 2000
      bertaccum compare runs/first runs/latest --json
    """
    if len(runs) < 2:
        raise click.UsageError("compare needs at least two runs")
    config = CompareConfig(**values)
    from bertaccum.reporting.run_summaries import compare as run

    result = run(config, [Path(path) for path in runs])
    print_result(as_json, result, print_comparison)
    if result["missing_characters"]:
        what = f"no installed font has the characters {result['missing_characters']}"
        remedy = "install a font that has them, such as Noto Sans CJK, or open compare.svg"
        sentences.note(f"note: {what}, so compare.png shows boxes instead; {remedy}")


@command("report")
@run_argument
@options(ReportConfig)
@shown
def make_page(view: View, **values: Any) -> None:
    """Write an HTML page about a run, with curves, scores and mistakes.

    The page is one file that needs no network. It includes an evaluation of the best model, by
    default on the same split as `bertaccum eval`. RUN is the run folder; it is a shorter form of
    --run.

    \b
    Examples:
      bertaccum report
      bertaccum report --run runs/20260102-030405 --split dev
      bertaccum report --out latest.html
    """
    with view:
        record = announce_run(view, values["run"])
        if record.best is not None:
            values["split"] = announce_split(view, record, values["split"])
        page = api.report(progress=view, note=view.note, **values)
    sentences.result(f"{page}: written")
