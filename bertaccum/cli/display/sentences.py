"""Messages about runs, and functions that write to stdout and stderr."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from bertaccum.inference.results import Prediction
from bertaccum.options import metrics
from bertaccum.options.fields import Options, field_names
from bertaccum.options.offload_rungs import LADDER
from bertaccum.system.files import json_text
from bertaccum.system.phrases import counted
from bertaccum.system.printable import printable, printable_json
from bertaccum.training.events import Evaluated, OutOfMemory, Started, Stopped

# A training loss above the second number that did not fall below this fraction of its start is
# reported, if there were enough updates.
_FELL, _LOW_LOSS, _FEW_UPDATES = 0.9, 0.3, 20
# Fine-tuning takes at least about as many updates.
_USUAL_UPDATES = 100
_TAB = "\t"  # A line may have columns.
# Options that are no fields of a configuration.
_OWN_OPTIONS = ["config", "find_lr", "log_every", "quiet", "results", "resume", "seeds", "workers"]
# Shown before the first update.
TRACING = "tracing the training step, which takes a while but happens only once"


@functools.cache
def _option_names() -> frozenset[str]:
    from bertaccum.options import commands as config
    from bertaccum.options import prepare as prepare_config
    from bertaccum.options import pretraining

    modules = config, prepare_config, pretraining
    known = [value for module in modules for value in vars(module).values()]
    configs = [value for value in known if isinstance(value, type) and issubclass(value, Options)]
    return frozenset(_OWN_OPTIONS).union(*map(field_names, configs))


def with_flags(message: str) -> str:
    """Return a message whose options in backticks, `target_batch`, are flags, `--target-batch`."""

    def flag(match: re.Match[str]) -> str:
        name = match[1].replace("_", "-")
        if match[1] not in _option_names():
            return match[0]
        return f"--no-{name}" if match[2] else f"--{name}"

    return re.sub(r"`([a-z_]+)(=False)?`", flag, message)


def relative_path(path: Path) -> Path:
    """Return a path relative to the current folder if it is inside that folder, else unchanged."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def wrapped(line: str, width: int, indent: int = 0) -> str:
    """Return a line broken between words into lines of at most `width` terminal cells.

    Long words, such as paths, and commands in backticks stay whole, so that they can be copied.
    """
    if width == 0:
        return line
    from rich.cells import cell_len

    if cell_len(line) <= width:
        return line
    whole = re.sub(r"`[^`]+`", lambda match: match[0].replace(" ", "\0"), line)
    lines = textwrap.wrap(
        # textwrap counts characters, so one more follows each that is two cells wide.
        "".join(one + "\1" * (cell_len(one) - 1) for one in whole),
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        expand_tabs=False,
        replace_whitespace=False,
    )
    return "\n".join(lines).replace("\0", " ").replace("\1", "")


def _fitted(text: str, stream: TextIO, indent: int = 0) -> str:
    """Return a printable text, wrapped if the stream is a terminal of a known width."""
    text = printable(text, _TAB)
    width = 0
    with contextlib.suppress(OSError, ValueError):
        width = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    return wrapped(text, width, indent)


def note(text: str, stream: TextIO | None = None) -> None:
    """Write a line to stderr, or to `stream` if given; on a terminal, it wraps between words."""
    stream = stream or sys.stderr
    # A single write keeps lines of different threads apart.
    print(f"{_fitted(text, stream)}\n", end="", file=stream, flush=True)


@contextlib.contextmanager
def naming_stdout() -> Iterator[None]:
    """Name stdout in an error of writing to it, because stdout may be a file on a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = "standard output"
        raise


def result(text: str, indent: int | None = None) -> None:
    """Write a line of results to stdout.

    On a terminal, wrap it between words, with `indent` spaces before all lines but the first one;
    None writes it as it is.
    """
    with naming_stdout():
        line = printable(text, _TAB) if indent is None else _fitted(text, sys.stdout, indent)
        print(line, flush=True)


def result_json(values: dict[str, Any], indent: int | None = 2) -> None:
    """Print a result as JSON on stdout, on one line if `indent` is None."""
    with naming_stdout():
        print(printable_json(json_text(values, indent).rstrip()), flush=True)


def prediction(predicted: Prediction, as_json: bool) -> None:
    """Print a prediction on one line: result, probability and text, or all fields as JSON."""
    if as_json:
        result_json(predicted.record(), indent=None)
    else:
        texts = [predicted.text, *([] if predicted.text_pair is None else [predicted.text_pair])]
        if predicted.tags is not None:
            texts = [_tagged(predicted)]
        columns = [*_predicted(predicted), *(" ".join(text.split()) for text in texts)]
        result(_TAB.join(map(printable, columns)))


def _tagged(predicted: Prediction) -> str:
    """Return a text whose entities, or words, are in brackets with their types or tags."""
    text, parts, at = predicted.text, list[str](), 0
    for one in predicted.entities or predicted.words or []:
        parts += [text[at : one["start"]], f"[{one.get('type') or one.get('tag')} {one['text']}]"]
        at = one["end"]
    return "".join([*parts, text[at:]])


def _predicted(predicted: Prediction) -> list[str]:
    """Return the columns that describe a prediction."""
    if predicted.entities is not None or predicted.words is not None:
        return []
    if predicted.masks is not None:
        return [predicted.filled]
    if predicted.score is not None:
        return [metrics.written(predicted.score, "mse")]
    assert predicted.probabilities is not None
    if predicted.labels is None:
        assert predicted.label is not None
        return [predicted.label, f"{predicted.probabilities[predicted.label]:.4f}"]
    probabilities = (f"{predicted.probabilities[name]:.4f}" for name in predicted.labels)
    return ["|".join(predicted.labels), "|".join(probabilities)]


def started(event: Started) -> str:
    """Return the lines that describe a run before its first update."""
    resumed = f"resuming after update {event.done:,}" if event.done else ""
    if event.over:
        resumed = f"already finished at update {event.done:,}; to train further, {event.over}"
    cut = event.truncation if event.truncation and event.truncation.longer else None
    lines = [
        f"{event.model}: {event.parameters:,} parameters, {_weights(event)}",
        f"{counted(event.train_examples, 'example')} to train on, {event.dev_examples:,} for dev",
        _teacher(event),
        f"warning: {event.doubt}" if event.doubt else "",
        *([f"{cut}", cut.advice()] if cut else []),
        f"{event.plan}; {counted(event.updates, 'update')}",
        f"plan: {event.why}" if event.why else "",
        f"learning rate {event.learning_rate:g}, the default for this model"
        if event.default_rate
        else "",
        resumed,
        f"run folder: {event.folder}",
    ]
    return "\n".join(printable(with_flags(line)) for line in lines if line)


def _teacher(event: Started) -> str:
    """Return a description of the teacher; empty without one."""
    if event.teacher is None:
        return ""
    texts = counted(event.unlabeled_examples, "unlabeled text")
    return f"teacher: {event.teacher}" + (f", also for {texts}" if event.unlabeled_examples else "")


def _weights(event: Started) -> str:
    """Return a description of the initial weights."""
    if event.pretrained_run is not None:
        origin = f"from the best checkpoint of run {event.pretrained_run}"
        if event.pretrained_head:
            return f"encoder and head {origin}"
        why = "the run has none for these labels"
        if event.head_difference:
            why = f"{event.head_difference} differs; --keep-head keeps it"
        return f"encoder {origin}; the head is random, because {why}"
    if not event.pretrained:
        return "random weights, not pretrained"
    pooler = "" if event.pretrained_pooler else ", except for the pooler, which is random"
    return ("encoder and head fine-tuned" if event.pretrained_head else "pretrained") + pooler


def duration(seconds: float | None) -> str:
    """Return a duration such as `0:01:04` or `1 day, 0:01:04`, or `?` if it is unknown."""
    return "?" if seconds is None else str(datetime.timedelta(seconds=round(seconds)))


def batch_advice(advice: dict[str, Any]) -> str:
    """Return a sentence about the noise scale of a run, given the result of `advice`."""
    batch, scale = advice["target_batch"], advice["noise_scale"] or advice["lowest"]
    least, smaller = "at most " if advice["is_bound"] else "", max(round(scale), 1)
    better = ""
    if smaller < batch and not advice["is_bound"]:
        share = (1 + smaller / scale) / (1 + batch / scale)
        better = (
            f"; a smaller batch is the better choice: {smaller:,} would take about {share:.2f} of"
            " the examples"
        )
    return (
        f"noise scale {metrics.noise_scale(advice)}: batches up to about {scale:,.0f} reduce the"
        f" number of updates almost proportionally; {batch:,} takes {least}{batch / scale:.0%} more"
        f" examples than very small batches; {2 * batch:,} would take about"
        f" {_of_double_batch(advice):.2f} of the updates{better}"
    )


def double_batch(advice: dict[str, Any]) -> str:
    """Return a sentence about twice the target batch, given the result of `advice`."""
    updates = f"{_of_double_batch(advice):.0%} of the updates (see `bertaccum advise`)"
    batch = 2 * advice["target_batch"]
    return f"with target batch {batch:,}, the same loss would take about {updates}"


def learned_little(best: metrics.Evaluation, updates: int) -> str:
    """Return a sentence about a run that has learned little, if its best evaluation tells so."""
    doubt, advice = metrics.warning(best), "try the learning rate that --find-lr suggests"
    if not doubt:
        return ""
    if updates >= _USUAL_UPDATES:
        return f"{doubt}; {advice}, or train longer"
    return f"{doubt}; {counted(updates, 'update')} may be too few: raise --epochs, or {advice}"


def hardly_fell(found: Iterable[float | None]) -> str:
    """Return a sentence about a run whose training loss hardly fell, given that of each update.

    The means of the first and of the last tenth are compared. A low loss need not fall. A loss that
    was not finite is None.
    """
    losses = [loss for loss in found if loss is not None]
    if len(losses) < _FEW_UPDATES:
        return ""
    part = max(len(losses) // 10, 1)
    first, last = (sum(some) / part for some in (losses[:part], losses[-part:]))
    if not (first > _LOW_LOSS and last > _FELL * first):
        return ""
    return (
        f"the training loss hardly fell, from {first:.4f} to {last:.4f} in {len(losses):,} updates:"
        " raise --epochs, or try the learning rate that --find-lr suggests"
    )


def _of_double_batch(advice: dict[str, Any]) -> float:
    double = 2 * advice["target_batch"]
    return next(row["updates"] for row in advice["batches"] if row["target_batch"] == double)


def suggested_rate(rates: dict[str, Any]) -> str:
    """Return a sentence about the learning rate that the finder suggests."""
    lowest = f"the loss is lowest at {rates['lowest_loss_at']:.1e}"
    if rates["learning_rate"] is None:
        return "no suggestion: the loss did not clearly fall; train longer, or with a larger batch"
    if not rates["has_risen"]:
        lowest += " and does not rise after it, so a higher rate may be better"
    rate = f"{rates['learning_rate']:.1e}"
    why = f"a third of the rate at which {lowest}"
    return f"try learning rate {rate}, {why}: train with --learning-rate {rate}"


def evaluated(event: Evaluated, best_by: str = "accuracy", first: bool = False) -> str:
    """Return the message for an evaluation, the first one with the constant majority baseline."""
    remarks = ["best so far" if event.best else "", metrics.one_class(event.scores)]
    remark = ", but ".join(filter(None, remarks))
    said = f"update {event.update}: {metrics.sentence(event.scores, best_by, first)}"
    return f"{said}  ({remark})" if remark else said


def out_of_memory(event: OutOfMemory) -> str:
    """Return the message for an update that ran out of memory and is run again."""
    how = ""
    if event.out_of_memory == event.micro_batch:
        moved = LADDER[event.offload].phrase
        how = f"with {moved} in host memory, " if moved else "with recomputation, "
    return (
        f"update {event.update}: out of memory with micro-batches of {event.out_of_memory};"
        f" running the update again {how}in micro-batches of {event.micro_batch}"
    )


def stopped(event: Stopped, again: bool = False) -> str:
    """Return the message for a stopped run, which the same command resumes if `again`."""
    if again or event.workers > 1:
        how = "run the same command again to resume"
    else:
        how = f"resume with `bertaccum train --resume {event.folder}`"
    return f"stopped by a signal after update {event.update:,}; {how}"


def updates_done(outline: dict[str, Any]) -> str:
    """Return how many updates a run has made and, if it has not finished, of how many."""
    planned = None if outline["status"] == "finished" else outline["planned_updates"]
    return f"{outline['updates']:,}" + (f" of {planned:,}" if planned else "")


def run_line(outline: dict[str, Any]) -> str:
    """Return a line with the path of a run, its progress and the update of its best checkpoint."""
    name, best = relative_path(Path(outline["run"]).resolve()), outline["best_update"]
    place = f"update {updates_done(outline)}"
    how = {"running": f", still running ({place})", "stopped": f", stopped at {place}"}
    said = f"run: {name}{how.get(outline['status'], '')}"
    if best is None:
        return said
    so_far = "" if outline["status"] == "finished" else " so far"
    return f"{said}; its best checkpoint{so_far}: update {best:,}"
