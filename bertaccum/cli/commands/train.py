"""`bertaccum train`: start one run, run several seeds, or resume a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import click

from bertaccum import api
from bertaccum.cli.config_file import config_option
from bertaccum.cli.display import comparison_tables, sentences
from bertaccum.cli.display.run_tables import print_summary
from bertaccum.cli.display.view import View
from bertaccum.cli.options import command, grouped_option, is_named, json_option, options, shown
from bertaccum.cli.shared import fail, print_result, stopping_with
from bertaccum.errors import ConfigError, InputError
from bertaccum.options.commands import CHECKPOINTS, OPTIMIZATION, TrainConfig
from bertaccum.runs.record import read_record
from bertaccum.training import events

resume_option = grouped_option(
    "--resume",
    group=CHECKPOINTS,
    type=click.Path(),
    metavar="RUN",
    help="Resume this run from its last checkpoint, with the same options.",
)


@command()
@config_option()
@resume_option
@options(TrainConfig)
@grouped_option(
    "--seeds",
    group=OPTIMIZATION,
    type=click.IntRange(min=1),
    metavar="INTEGER",
    help="Number of runs, each with its own seed and its own folder in --out. Their means and"
    " standard deviations are printed.",
)
@grouped_option(
    "--find-lr",
    group=OPTIMIZATION,
    is_flag=True,
    help="Only suggest a learning rate: train for 100 updates (or --max-updates) with a rising"
    " rate, until the loss has clearly risen, and draw the curve in --out. No model is saved.",
)
@json_option
@shown
def train(
    view: View, as_json: bool, resume: str | None, seeds: int | None, find_lr: bool, **values: Any
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
      bertaccum train --find-lr

    SIGINT (Ctrl-C) and SIGTERM discard the unfinished update, save a checkpoint and stop the
    run; a second signal stops it immediately.
    """
    named = {name: value for name, value in values.items() if is_named(name)}
    if resume is None:
        TrainConfig(**named)  # Report invalid options before TensorFlow is imported.
    if find_lr:
        if resume is not None or seeds is not None:
            other = "seeds" if resume is None else "resume"
            raise ConfigError(f"`find_lr` and `{other}` contradict each other", "omit one of them")
        with view:
            view.note("loading data and model")
            result = api.find_learning_rate(progress=view, **named)
        print_result(as_json, result, comparison_tables.print_rates)
        return
    began, asked = time.monotonic(), {"resume": resume, "seeds": seeds, **named}
    start, summaries = follow(view, api.training_events, asked)
    if seeds is not None:
        from bertaccum.training.seed_sweep import write_spread

        spread = write_spread(Path(values["out"]), summaries)
        print_result(as_json, spread, comparison_tables.print_seeds)
        _doubt(view, summaries)
    elif start is not None and start.worker == 0:
        folder, summary = str(start.folder), summaries[-1]
        took = time.monotonic() - began
        print_result(as_json, summary, lambda _: print_summary(summary, folder, took))
        if not _doubt(view, summaries):
            record = read_record(start.folder)
            if said := sentences.hardly_fell([line["loss"] for line in record.updates]):
                view.note(said)
                return
            from bertaccum.reporting.batch_advice import advice

            with contextlib.suppress(InputError):  # The run may have measured too few updates.
                view.note(sentences.double_batch(advice(record)))


def follow(
    view: View, run: Callable[..., Generator[events.Event]], asked: dict[str, Any]
) -> tuple[events.Started | None, list[dict[str, Any]]]:
    """Show the events of runs, and return the last `Started` and the summaries of all.

    If a signal stops a run, the program ends.

    Args:
      run: Function of `bertaccum.api` that returns events.
      asked: Its arguments, except for those that show and stop the run.
    """
    start, summaries = None, []
    with view, stopping_with(view) as stopping:
        view.note("loading data and model")
        with contextlib.closing(run(progress=view, stopping=stopping, **asked)) as happened:
            for event in happened:
                if isinstance(event, events.Started):
                    start = event
                elif isinstance(event, events.Finished):
                    summaries.append(event.summary)
                # Only the chief reports events, but every worker reports that it ran out of memory.
                if start and (start.worker == 0 or isinstance(event, events.OutOfMemory)):
                    view.event(event)
    if isinstance(event, events.Stopped):
        fail(
            sentences.stopped(event, again=asked.get("seeds") is not None), 128 + event.signal, view
        )
    return start, summaries


def _doubt(view: View, summaries: list[dict[str, Any]]) -> bool:
    """Return whether all runs that were trained have learned little, and say so."""
    said = [
        sentences.learned_little(summary["best_evaluation"], summary["updates"])
        for summary in summaries
        if summary["updates"]
    ]
    if not (said and all(said)):
        return False
    view.note(said[-1])
    return True
