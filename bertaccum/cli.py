"""The command line: parse, import what is needed, call, report.

This module stays light: `bertaccum --help` loads neither tensorflow nor pandas.
Errors end here, as one line and an exit code: 0 done, 1 the run failed, 2 usage,
configuration or input.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import sys
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from bertaccum import __version__, report
from bertaccum.config import (
    AUTO,
    CompareConfig,
    EvalConfig,
    PlanConfig,
    PrepareConfig,
    ReportConfig,
    StepConfig,
    TrainConfig,
    field_names,
)
from bertaccum.config_file import read_config_file
from bertaccum.errors import BertAccumError
from bertaccum.files import standing
from bertaccum.stopping import Stopping, Terminated

INTERRUPTED, TERMINATED = 130, 143
# How many examples a page shows that the model gets wrong.
MISTAKES = 20

if typing.TYPE_CHECKING:
    from bertaccum.records.record import Record


class AutoOrInt(click.ParamType):
    """A whole number, or the word `auto`."""

    name = "integer|auto"

    def __init__(self, minimum: int) -> None:
        self._range = click.IntRange(min=minimum)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        return AUTO if value == AUTO else self._range.convert(value, param, ctx)


def options(config: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds one Click option for every field of a configuration dataclass."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        hints = typing.get_type_hints(config)
        for field in reversed(dataclasses.fields(config)):
            command = _option(field, hints[field.name])(command)
        return command

    return decorate


def _option(field: dataclasses.Field[Any], hint: Any) -> Callable[..., Any]:
    flag = "--" + field.name.replace("_", "-")
    if hint is bool:
        return click.option(flag, is_flag=True, default=field.default, help=field.metadata["help"])
    if field.metadata["switch"]:
        flag = f"{flag}/--no-{flag[2:]}"
        return click.option(flag, default=field.default, help=field.metadata["help"])
    return click.option(
        flag,
        type=_option_type(field.metadata, hint),
        default=field.default,
        show_default=field.default is not None,
        help=field.metadata["help"],
    )


def _option_type(metadata: Any, hint: Any) -> Any:
    kinds = set(typing.get_args(hint)) or {hint}
    if metadata["choices"]:
        return click.Choice(metadata["choices"])
    if {int, str} <= kinds:
        return AutoOrInt(metadata["minimum"])
    if not kinds & {int, float}:
        return click.STRING
    number = click.IntRange if int in kinds else click.FloatRange
    open_ends = metadata["exclusive"]
    return number(
        min=metadata["minimum"],
        max=metadata["maximum"],
        min_open=open_ends and metadata["minimum"] is not None,
        max_open=open_ends and metadata["maximum"] is not None,
    )


def _use_config_file(
    ctx: click.Context, _: click.Parameter, path: str | None, others: frozenset[str]
) -> None:
    """Makes a YAML file's values the defaults of this command; `others` are passed over."""
    if path is None:
        return
    parameters = {p.name: p for p in ctx.command.params if p.name not in ("config", "as_json")}

    def check(key: str, value: Any) -> Any:
        parameter = parameters[key]
        whole = isinstance(parameter.type, click.IntRange | AutoOrInt)
        plain = isinstance(value, str | int) or (isinstance(value, float) and not whole)
        flag = isinstance(parameter.type, click.types.BoolParamType)
        if not plain or isinstance(value, bool) != flag:
            raise ValueError(f"{value!r} is not valid")
        try:
            return parameter.type.convert(value, parameter, ctx)
        except click.BadParameter as error:
            raise ValueError(error.message.rstrip(".")) from None

    ctx.default_map = read_config_file(Path(path), parameters, check, others)


def config_option(others: frozenset[str] = frozenset()) -> Callable[..., Any]:
    """`--config`, for files that may also have these `others` keys."""
    return click.option(
        "--config",
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=functools.partial(_use_config_file, others=others),
        help="YAML file with any of these options; a flag beats the file.",
    )


# What a recipe of train says beyond a step; the folder that it names is not plan's file.
_RECIPE_ONLY = frozenset(field_names(TrainConfig) - field_names(StepConfig))
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


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
    """
    if ctx.invoked_subcommand is None:
        report.result(ctx.get_help())


@cli.command()
@options(PrepareConfig)
@json_option
def prepare(as_json: bool, **values: Any) -> None:
    """Write train.tsv, dev.tsv, test.tsv and a manifest.

    \b
    Examples:
      bertaccum prepare
      bertaccum prepare --archive yelp_review_polarity_csv.tgz
      bertaccum prepare --source sample
      bertaccum prepare --source csv --train-file mine.csv --label-column stars
    """
    config = PrepareConfig(**values)
    _quiet_tensorflow()
    from bertaccum.bert.vocabulary import learn_vocabulary
    from data_prep.prepare import prepare as run

    with report.Progress() as progress:
        done = run(config, progress, learn_vocabulary)
    if as_json:
        report.result_json(done.manifest)
    else:
        report.prepared(str(done.folder), done.manifest, done.unchanged)


@cli.command()
@config_option(others=_RECIPE_ONLY)
@options(PlanConfig)
@json_option
def plan(as_json: bool, **values: Any) -> None:
    """Measure which micro-batch is the fastest that fits.

    Training steps are run in a process of their own. `bertaccum train --micro-batch auto` does
    the same by itself; what was measured is kept and taken again.

    \b
    Examples:
      bertaccum plan
      bertaccum plan --model bert-base --max-seq-length 512 --device-memory 4GiB
      bertaccum plan --config configs/yelp.yaml --memory-limit 560MiB --json
    """
    config = PlanConfig(**values)
    _quiet_tensorflow()
    from bertaccum.training.planner import plan as run

    with report.Progress() as progress:
        found = run(config, progress)
    if as_json:
        report.result_json(found.values)
    else:
        report.planned(found, config.out)
    found.taken()


@cli.command()
@config_option()
@click.option(
    "--resume",
    metavar="RUN",
    help="Run folder to go on with, as it was configured, from the last state that it saved.",
)
@options(TrainConfig)
@json_option
@click.pass_context
def train(ctx: click.Context, as_json: bool, resume: str | None, **values: Any) -> None:
    """Fine-tune a classifier on prepared data.

    \b
    Examples:
      bertaccum train --target-batch 32 --micro-batch 8
      bertaccum train --config configs/yelp.yaml --precision mixed_float16
      bertaccum train --data data/sample --model bert-tiny --init-checkpoint none
      bertaccum train --resume runs/latest

    SIGINT (Ctrl-C) and SIGTERM stop it between two updates, with its state saved; a second one
    stops it at once.
    """
    if resume is None:
        config = TrainConfig(**values)
    named = {name: value for name, value in values.items() if _is_named(ctx, name)}
    _quiet_tensorflow()
    from bertaccum.training import events, loop

    with report.Progress() as progress, Stopping(functools.partial(_leave, progress)) as stopping:
        progress.note("loading data and model")
        if resume is None:
            run = loop.train(config, progress, stopping, named)
        else:
            run = loop.resume(Path(resume), named, progress, stopping)
        for event in run:
            if isinstance(event, events.Started):
                start = event
            if isinstance(event, events.OutOfMemory):
                progress.note(report.out_of_memory(event))
            elif start.worker > 0:
                continue  # The chief says it for all.
            elif isinstance(event, events.Started):
                progress.note(report.started(event))
            elif isinstance(event, events.Updated):
                progress("training", event.update, start.updates, report.updated(event))
            elif isinstance(event, events.Evaluated):
                progress.note(report.evaluated(event))
    if isinstance(event, events.Stopped):
        _fail(report.stopped(event), 128 + event.signal)
    assert isinstance(event, events.Finished)
    if start.worker > 0:
        return
    if as_json:
        report.result_json(event.summary)
    else:
        report.result(report.finished(event, str(start.folder)))


@cli.command(context_settings={"ignore_unknown_options": True})
@click.option("--workers", type=click.IntRange(min=2), required=True, help="How many processes.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def launch(workers: int, command: tuple[str, ...]) -> None:
    """Train with several workers on this machine.

    They are processes that talk over the loopback interface, on ports that are free. Each line
    on stderr begins with its worker's number. If one fails, all are ended; the same command,
    started again, goes on from the last saved state.

    \b
    Example:
      bertaccum launch --workers 2 -- train --target-batch 32 --out runs/together
    """
    if command[0] != "train":
        raise click.UsageError(f"launch starts train, not {command[0]}")
    from bertaccum.distribution.launch import launch as run

    sys.exit(run(workers, command))


@cli.command("eval")
@options(EvalConfig)
@json_option
def evaluate(as_json: bool, **values: Any) -> None:
    """Evaluate the best model of a run.

    \b
    Examples:
      bertaccum eval
      bertaccum eval --run runs/20260102-030405 --split dev
      bertaccum eval --file mine.tsv --json
    """
    config = EvalConfig(**values)
    _quiet_tensorflow()
    from bertaccum.training.evaluation import evaluate as run
    from bertaccum.training.evaluation import write_evaluation

    with report.Progress() as progress:
        result = run(config, progress)
    if as_json:
        report.result_json(result)
    else:
        report.evaluation(result)
    write_evaluation(config, result)


@cli.command()
@click.argument("runs", nargs=-1, required=True)
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
        report.result_json(result)
    else:
        report.compared(result)


@cli.command("report")
@click.argument("run", default="runs/latest")
@options(ReportConfig)
def make_page(run: str, **values: Any) -> None:
    """Make a page of a run, with curves, scores and mistakes.

    It is one HTML file that needs no network and no other file. The best model is evaluated for
    it. RUN is a run folder, by default runs/latest.

    \b
    Examples:
      bertaccum report
      bertaccum report runs/20260102-030405 --split test
      bertaccum report runs/latest --out latest.html
    """
    config = ReportConfig(**values)
    from bertaccum.records.page import write_page
    from bertaccum.records.record import read_record

    record = read_record(Path(run))
    out = Path(config.out) if config.out else record.paths.page
    write_page(record, *_judged(record, config.split), out)
    report.result(f"{out}: written")


def _judged(record: Record, split: str) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """What the best model of a run is worth, and what it gets most wrong; nothing without one."""
    if not standing(record.paths.best).is_dir():
        return None, []
    _quiet_tensorflow()
    from bertaccum.training.evaluation import evaluation, most_wrong, predictions

    with report.Progress() as progress:
        found = predictions(EvalConfig(run=str(record.paths.path), split=split), progress)
    return evaluation(found), most_wrong(found, MISTAKES)


def _is_named(ctx: click.Context, name: str) -> bool:
    """Whether an option was given, by a flag or a file."""
    sources = click.core.ParameterSource
    return ctx.get_parameter_source(name) in (sources.COMMANDLINE, sources.DEFAULT_MAP)


def _leave(progress: report.Progress, number: int) -> typing.NoReturn:
    """Ends the process while it computes: nothing that is waited for comes back."""
    try:
        progress.stop()
        report.note("error: stopped at once; go on from the last saved state with --resume")
    finally:
        os._exit(128 + number)


def _quiet_tensorflow() -> None:
    """Keeps TensorFlow's chatter off the screen, unless the user asked for it."""
    if "TF_CPP_MIN_LOG_LEVEL" not in os.environ:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        logging.getLogger("tensorflow").setLevel(logging.ERROR)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program; every error becomes one line and an exit code."""
    try:
        sys.exit(cli.main(arguments, standalone_mode=False))
    except BertAccumError as error:
        _fail(str(error), error.exit_code)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = f"; see `{context.command_path} --help`" if context else ""
        _fail(" ".join(error.format_message().split()).rstrip(".") + where, error.exit_code)
    except (KeyboardInterrupt, click.Abort) as error:
        # Click makes its own error of the signal's.
        if isinstance(error, Terminated) or isinstance(error.__cause__, Terminated):
            _fail("terminated", TERMINATED)
        _fail("interrupted", INTERRUPTED)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}; check permissions and free space", 1)
    except Exception as error:
        if os.environ.get("BERTACCUM_TRACEBACK"):
            raise
        _fail(
            f"unexpected {type(error).__name__}: {error}; set BERTACCUM_TRACEBACK=1 to see where,"
            " and report it",
            1,
        )


def _fail(message: str, code: int) -> typing.NoReturn:
    with contextlib.suppress(OSError):  # Nobody may be there to read it.
        report.note(f"error: {' '.join(message.split())}")
    sys.exit(code)
