"""The command line: parse, import what is needed, call, report.

This module stays light: `bertaccum --help` loads neither tensorflow nor pandas.
Errors end here, as one line and an exit code: 0 done, 1 the run failed, 2 usage,
configuration or input.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bertaccum import __version__, api
from bertaccum.config import (
    CompareConfig,
    EvalConfig,
    ExportConfig,
    PlanConfig,
    PredictConfig,
    PrepareConfig,
    ReportConfig,
    StepConfig,
    TrainConfig,
)
from bertaccum.display import text
from bertaccum.errors import BertAccumError, ConfigError
from bertaccum.options import config_option, json_option, options, shown
from bertaccum.settings import field_names
from bertaccum.stopping import Stopping, Terminated

if TYPE_CHECKING:
    from bertaccum.display.view import View

INTERRUPTED, TERMINATED = 130, 143
# What a recipe of train says beyond a step; the folder that it names is not plan's file.
_RECIPE_ONLY = frozenset(field_names(TrainConfig) - field_names(StepConfig))


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
        text.result(ctx.get_help())


@cli.command()
@options(PrepareConfig)
@json_option
@shown
def prepare(view: View, as_json: bool, **values: Any) -> None:
    """Write train.tsv, dev.tsv, test.tsv and a manifest.

    \b
    Examples:
      bertaccum prepare
      bertaccum prepare --archive yelp_review_polarity_csv.tgz
      bertaccum prepare --source sample
      bertaccum prepare --source csv --train-file mine.csv --label-column stars
    """
    _quiet_tensorflow()
    with view:
        done = api.prepare(progress=view, **values)
    if as_json:
        text.result_json(done.manifest)
    else:
        _tables().prepared(str(done.folder), done.manifest, done.unchanged)


@cli.command()
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
    _quiet_tensorflow()
    with view:
        found = api.plan(progress=view, **values)
    if as_json:
        text.result_json(found.values)
    else:
        _tables().planned(found, values["out"])
    found.taken()


@cli.command()
@config_option()
@click.option(
    "--resume",
    type=click.Path(),
    metavar="RUN",
    help="Run folder to go on with, as it was configured, from the last state that it saved.",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    help="Train so many times, with one seed after the other, into folders in --out; print mean and"
    " spread.",
)
@options(TrainConfig)
@json_option
@shown
@click.pass_context
def train(
    ctx: click.Context,
    view: View,
    as_json: bool,
    resume: str | None,
    seeds: int | None,
    **values: Any,
) -> None:
    """Fine-tune a classifier on prepared data.

    \b
    Examples:
      bertaccum train --target-batch 32 --micro-batch 8
      bertaccum train --config configs/yelp.yaml --precision mixed_float16
      bertaccum train --data data/sample --model bert-tiny --init-checkpoint none
      bertaccum train --eval-every 0.25 --patience 4
      bertaccum train --resume runs/latest
      bertaccum train --config configs/cola.yaml --seeds 3 --out runs/cola

    SIGINT (Ctrl-C) and SIGTERM stop it between two updates, with its state saved; a second one
    stops it at once.
    """
    named = {name: value for name, value in values.items() if _is_named(ctx, name)}
    if resume is None:
        TrainConfig(**named)  # What is wrong with it is said at once.
    _quiet_tensorflow()
    from bertaccum.training import events

    start, summaries = None, []
    with view, Stopping(functools.partial(_leave, view)) as stopping:
        view.note("loading data and model")
        for event in api.train(
            resume=resume, seeds=seeds, progress=view, stopping=stopping, **named
        ):
            if isinstance(event, events.Started):
                start = event
            elif isinstance(event, events.Finished):
                summaries.append(event.summary)
            # The chief says it for all.
            if start and (start.worker == 0 or isinstance(event, events.OutOfMemory)):
                view.event(event)
    if isinstance(event, events.Stopped):
        _fail(text.stopped(event, again=seeds is not None), 128 + event.signal, view)
    if seeds is not None:
        _finished_seeds(Path(values["out"]), summaries, as_json)
    elif start is not None and start.worker == 0:
        _finished(start.folder, summaries[-1], as_json)


def _finished(folder: Path, summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        text.result_json(summary)
    else:
        text.result(text.finished(summary, str(folder)))


def _finished_seeds(out: Path, summaries: list[dict[str, Any]], as_json: bool) -> None:
    from bertaccum.training.seeds import write_spread

    spread = write_spread(out, summaries)
    if as_json:
        text.result_json(spread)
    else:
        _tables().spread(spread)


@cli.command(context_settings={"ignore_unknown_options": True})
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
    from bertaccum.distribution.launch import is_file
    from bertaccum.distribution.launch import launch as run

    if command[0] != "train" and not is_file(command[0]):
        raise click.UsageError(f"launch starts train or a Python file, not {command[0]}")
    if is_file(command[0]) and not Path(command[0]).is_file():
        raise ConfigError(f"{command[0]}: there is no such file", "name a Python file, or train")

    sys.exit(run(workers, command))


@cli.command("eval")
@options(EvalConfig)
@click.option(
    "--results",
    type=click.Path(),
    metavar="FILE",
    help="Write eval_results.txt as run_classifier does; its global_step counts updates.",
)
@json_option
@shown
def evaluate(view: View, results: str | None, as_json: bool, **values: Any) -> None:
    """Evaluate the best model of a run.

    \b
    Examples:
      bertaccum eval
      bertaccum eval --run runs/20260102-030405 --split dev
      bertaccum eval --file mine.tsv --json
      bertaccum eval --split dev --results eval_results.txt
    """
    _quiet_tensorflow()
    from bertaccum.display.run_classifier import results_file, write_evaluation

    written = results_file(Path(results)) if results else contextlib.nullcontext()
    with view, written as file:
        result = api.evaluate(progress=view, keep=False, **values)
        if file is not None:
            write_evaluation(file, result)
    if as_json:
        text.result_json(result)
    else:
        _tables().evaluation(result)
    api.keep_evaluation(EvalConfig(**values), result)


@cli.command()
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@options(PredictConfig)
@click.option(
    "--results",
    type=click.Path(),
    metavar="FILE",
    help="Write test_results.tsv as run_classifier does: the probabilities of each text, a line"
    " a text.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON record for each text.")
@shown
def predict(
    view: View, texts: tuple[str, ...], results: str | None, as_json: bool, **values: Any
) -> None:
    """Predict the classes of texts, with the best model of a run.

    Texts are arguments, or come from a file, or a line each from stdin. They are predicted as
    they come. For each a line is printed: class, probability, text.

    \b
    Examples:
      bertaccum predict "The food was great." "Never again."
      bertaccum predict --file reviews.csv --text-column body --json
      cat reviews.txt | bertaccum predict
      bertaccum predict --file data/yelp_polarity/test.tsv --results test_results.tsv
    """
    if texts and values["file"]:
        raise ConfigError("texts and --file both say what to predict", "drop one of the two")
    if not texts and values["file"] in (None, "-"):
        if values["file"] is None and sys.stdin.isatty():
            raise ConfigError("there is no text", "give some, name a --file, or pipe them in")
        values["file"] = "-"
    _quiet_tensorflow()
    from bertaccum.display.run_classifier import results_file, write_predictions

    with view:
        found = api.predict(texts or None, **values)
        if results is None:
            for one in found:
                text.prediction(one, as_json)
        else:
            with results_file(Path(results)) as file:
                count = write_predictions(file, found)
            text.result(f"{results}: {count:,} predictions")


@cli.command()
@click.argument("folder", type=click.Path(), default="runs")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON record for each run.")
def runs(folder: str, as_json: bool) -> None:
    """List the runs in a folder: what they were, how far they came, how good they are.

    \b
    Examples:
      bertaccum runs
      bertaccum runs experiments --json
    """
    from bertaccum.records.outline import outline
    from bertaccum.records.record import find_records

    found = list(find_records(Path(folder)))
    records = [one for one in found if not isinstance(one, BertAccumError)]
    if as_json:
        for record in records:
            text.result_json(outline(record), indent=None)
    else:
        _tables().runs([outline(record) for record in records])
    for error in found:
        if isinstance(error, BertAccumError):
            text.note(f"not listed: {error}")


@cli.command()
@click.argument("run", type=click.Path(), default="runs/latest")
@json_option
def show(run: str, as_json: bool) -> None:
    """Show a run: plan, progress, evaluations, and what it was told to do.

    \b
    Examples:
      bertaccum show
      bertaccum show runs/20260102-030405 --json
    """
    from bertaccum.records.outline import details
    from bertaccum.records.record import read_record

    found = details(read_record(Path(run)))
    if as_json:
        text.result_json(found)
    else:
        _tables().run(found)


@cli.command()
@click.argument("runs", type=click.Path(), nargs=-1, required=True)
@options(CompareConfig)
@json_option
def compare(as_json: bool, runs: tuple[str, ...], **values: Any) -> None:
    """Draw the curves of several runs, and say where they differ.

    The loss stands against the examples seen, not against updates, so that runs with different
    target batches compare. Runs may be under way.

    \b
    Examples:
      bertaccum compare runs/batch-8 runs/batch-32
      bertaccum compare runs/2026* --out figures --smooth 2000
      bertaccum compare runs/first runs/latest --json
    """
    if len(runs) < 2:
        raise click.UsageError("compare needs two runs or more")
    config = CompareConfig(**values)
    from bertaccum.records.compare import compare as run

    result = run(config, [Path(path) for path in runs])
    if as_json:
        text.result_json(result)
    else:
        _tables().compared(result)


@cli.command("report")
@click.argument("run", type=click.Path(), default="runs/latest")
@options(ReportConfig)
@shown
def make_page(view: View, run: str, **values: Any) -> None:
    """Make a page of a run, with curves, scores and mistakes.

    It is one HTML file that needs no network and no other file. The best model is evaluated for
    it. RUN is a run folder, by default runs/latest.

    \b
    Examples:
      bertaccum report
      bertaccum report runs/20260102-030405 --split test
      bertaccum report runs/latest --out latest.html
    """
    _quiet_tensorflow()
    with view:
        page = api.report(run, progress=view, **values)
    text.result(f"{page}: written")


def _tables() -> Any:
    """What needs rich is imported when there is something to show."""
    from bertaccum.display import tables

    return tables


@cli.command()
@options(ExportConfig)
@json_option
@shown
def export(view: View, as_json: bool, **values: Any) -> None:
    """Write the best model of a run for others to load.

    \b
    Examples:
      bertaccum export
      bertaccum export --format huggingface
      bertaccum export --run runs/20260102-030405 --out model
    """
    _quiet_tensorflow()
    with view:
        view.note("loading and tracing the model")
        result = api.export(**values)
    if as_json:
        text.result_json(result)
    else:
        text.result(text.exported(result))


def _is_named(ctx: click.Context, name: str) -> bool:
    """Whether an option was given, by a flag or a file."""
    sources = click.core.ParameterSource
    return ctx.get_parameter_source(name) in (sources.COMMANDLINE, sources.DEFAULT_MAP)


def _leave(view: View, number: int) -> typing.NoReturn:
    """Ends the process while it computes: nothing that is waited for comes back."""
    try:
        view.stop()
        view.error("stopped at once; go on from the last saved state with --resume", 128 + number)
    finally:
        os._exit(128 + number)


def _quiet_tensorflow() -> None:
    """Keeps TensorFlow's chatter off the screen, unless the user asked for it."""
    if "TF_CPP_MIN_LOG_LEVEL" not in os.environ:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        logging.getLogger("tensorflow").setLevel(logging.ERROR)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program; every error becomes one line and an exit code."""
    views: list[View] = []
    try:
        sys.exit(cli.main(arguments, standalone_mode=False, obj=views))
    except BertAccumError as error:
        message, code = str(error), error.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = f"; see `{context.command_path} --help`" if context else ""
        message = " ".join(error.format_message().split()).rstrip(".") + where
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort) as error:
        # Click makes its own error of the signal's.
        terminated = isinstance(error, Terminated) or isinstance(error.__cause__, Terminated)
        message, code = ("terminated", TERMINATED) if terminated else ("interrupted", INTERRUPTED)
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
    _fail(message, code, views[-1] if views else None)


def _fail(message: str, code: int, view: View | None = None) -> typing.NoReturn:
    line = " ".join(message.split())
    with contextlib.suppress(OSError):  # Nobody may be there to read it.
        text.note(f"error: {line}") if view is None else view.error(line, code)
    sys.exit(code)
