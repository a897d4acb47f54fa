"""Functions that train: runs, several seeds, sweeps, learning rates, pretraining."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertaccum.api.arguments import callback_of, configured, takes
from bertaccum.errors import ConfigError
from bertaccum.options.commands import TrainConfig
from bertaccum.options.fields import field_names, named_options
from bertaccum.options.pretraining import HIDDEN, PretrainConfig, hidden_options
from bertaccum.system.progress import Progress, silent
from bertaccum.system.stopping import Stopping

if TYPE_CHECKING:
    from bertaccum.training.events import Event, RunResult
    from bertaccum.training.seed_sweep import SeedsResult


@takes(TrainConfig)
def train(
    config: TrainConfig | None = None,
    *,
    resume: str | Path | None = None,
    callback: Callable[[Event], None] | None = None,
    progress: Progress = silent,
    stopping: Stopping | None = None,
    **options: Any,
) -> RunResult:
    """Train a classifier, as `bertaccum train` does.

        result = bertaccum.train(data="data/sample", target_batch=32, micro_batch=8)
        print(result.folder, result.best.accuracy)

    Args:
      config: The options; `options` override it. If it is None, the defaults apply or, with
        `resume`, the options of that run.
      resume: A run folder to resume. `config` must then be None, and `options` may contain only
        settings that the updates do not depend on.
      callback: Called with each event of the run (`bertaccum.Updated`, `Evaluated`, …), while the
        next update may already be running.
      progress: Called with the name of a phase, the amount of finished work and the total. The view
        that `bertaccum.live` returns also shows the events, if `callback` is None.
      stopping: A `Stopping` context, which turns SIGINT and SIGTERM into stop requests. If it is
        None, only an exception stops the run.
      options: Fields of `TrainConfig`.

    Returns:
      The run folder, the summary and the best evaluation.

    Raises:
      ConfigError: Options contradict each other or those of the resumed run.
      InputError: A file cannot be used.
      RunError: The run failed, for example because memory ran out, the disk was full or the loss
        was not finite.
    """
    events = training_events(config, resume=resume, progress=progress, stopping=stopping, **options)
    from bertaccum.training.events import collect

    with contextlib.closing(events):
        return collect(events, callback or callback_of(progress))


@takes(TrainConfig)
def train_seeds(
    seeds: int,
    config: TrainConfig | None = None,
    *,
    callback: Callable[[Event], None] | None = None,
    progress: Progress = silent,
    stopping: Stopping | None = None,
    **options: Any,
) -> SeedsResult:
    """Train several runs with different seeds, as `bertaccum train` does with `seeds`.

    If the call is interrupted, call the function again with the same arguments to resume.

    Args:
      seeds: The number of runs. The first run uses `seed`, and each later run the next integer.
      config, callback, progress, stopping: As for `train`.
      options: Fields of `TrainConfig`. `out` is the folder that contains all runs.

    Returns:
      A result for each run, and the mean and standard deviation of each metric over the runs.

    Raises:
      ConfigError, InputError, RunError: As for `train`.
    """
    whole = configured(TrainConfig, config, options)
    events = training_events(whole, seeds=seeds, progress=progress, stopping=stopping)
    from bertaccum.training.seed_sweep import collect_seeds

    with contextlib.closing(events):
        callback = callback or callback_of(progress)
        return collect_seeds(whole, Path(whole.out or ""), seeds, events, callback)


@takes(TrainConfig)
def sweep(
    grid: Mapping[str, Sequence[Any]] | None = None,
    config: TrainConfig | None = None,
    *,
    seeds: int = 1,
    halving: bool = False,
    callback: Callable[[Event], None] | None = None,
    progress: Progress = silent,
    stopping: Stopping | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train with all combinations of some options, as `bertaccum sweep` does.

    If the call is interrupted, call the function again with the same arguments to resume.

    Args:
      grid: The values of each option to vary; None for the grid of the BERT paper.
      seeds: The number of runs for each combination.
      halving: Whether to train all combinations a little, and only the best ones to the end.
      config, callback, progress, stopping: As for `train`.
      options: Fields of `TrainConfig`. `out` is the folder that contains all runs.

    Returns:
      The record that `bertaccum sweep --json` prints. `cells` contains a dict for each combination,
      the best first, with its `options`, the `mean` and `std` of its scores, and `failed`.

    Raises:
      ConfigError, InputError: As for `train`; also if `out` contains another sweep.
    """
    whole = configured(TrainConfig, config, options)
    from bertaccum.training.inputs import check_seeds

    if unknown := (grid or {}).keys() - field_names(TrainConfig):
        what = f"`{min(unknown)}` in the grid is no option of a run"
        raise ConfigError(what, "correct its name")
    # Check the first combination: the grid may replace the model of `whole`.
    first = {name: next(iter(values)) for name, values in (grid or {}).items() if len(values)}
    out = check_seeds(dataclasses.replace(whole, **first), seeds, progress)
    from bertaccum.training.sweep import search

    named, callback = _named(whole, config, options), callback or callback_of(progress)
    return search(whole, out, grid, seeds, halving, named, progress, stopping, callback)


@takes(TrainConfig)
def find_learning_rate(
    config: TrainConfig | None = None, *, progress: Progress = silent, **options: Any
) -> dict[str, Any]:
    """Suggest a learning rate after a short run, as `bertaccum train` does with `find_lr`.

    Args:
      config, progress: As for `train`.
      options: Fields of `TrainConfig`. `max_updates` is the length of the run, by default 100;
        `out` is the folder for the curve.

    Returns:
      The record that `bertaccum train --find-lr --json` prints: `learning_rate`, the suggestion, or
      None if the loss did not fall; `lowest_loss_at`; the curve; and the files that were written.

    Raises:
      ConfigError, InputError, RunError: As for `train`.
    """
    whole = configured(TrainConfig, config, options)
    from bertaccum.training.inputs import check_run

    inputs = check_run(whole, progress)
    from bertaccum.training.rate_finder import find_rate

    return find_rate(whole, inputs, progress)


@takes(TrainConfig)
def training_events(
    config: TrainConfig | None = None,
    *,
    resume: str | Path | None = None,
    seeds: int | None = None,
    progress: Progress = silent,
    stopping: Stopping | None = None,
    **options: Any,
) -> Generator[Event, None, None]:
    """Train, and yield each event as it happens.

    Training is at most one update ahead of the events: while the caller handles an `Updated`, the
    next update may already be running. Closing the generator stops that update and discards it. If
    an exception may interrupt the loop, wrap the generator in `contextlib.closing`.

        for event in bertaccum.training_events(target_batch=32, micro_batch=8):
            if isinstance(event, bertaccum.Updated):
                print(event.update, event.loss)

    Args:
      config, resume, progress, stopping: As for `train`.
      seeds: The number of runs, as for `train_seeds`.
      options: Fields of `TrainConfig`.

    Returns:
      `Started`, an `Updated` for each update, `Evaluated` and `OutOfMemory` as they happen, and
      finally `Finished` or `Stopped`.

    Raises:
      ConfigError, InputError: As for `train`; raised before the first event of a run.
      RunError: As for `train`.
    """
    if seeds is None:
        return _events(TrainConfig, config, resume, progress, stopping, options)
    if resume is not None:
        raise ConfigError("`resume` and `seeds` contradict each other", "omit one of the two")
    from bertaccum.training.inputs import check_seeds

    whole = configured(TrainConfig, config, options)
    out = check_seeds(whole, seeds, progress)
    from bertaccum.training.seed_sweep import train_seeds as run_seeds

    return run_seeds(whole, out, seeds, _named(whole, config, options), progress, stopping)


@takes(PretrainConfig, HIDDEN)
def pretrain(
    config: PretrainConfig | None = None,
    *,
    resume: str | Path | None = None,
    callback: Callable[[Event], None] | None = None,
    progress: Progress = silent,
    stopping: Stopping | None = None,
    **options: Any,
) -> RunResult:
    """Train an encoder further to predict masked tokens of texts, as `bertaccum pretrain` does.

        result = bertaccum.pretrain(text="reviews.txt", init_checkpoint="bert-tiny")
        bertaccum.train(data="data/reviews", init_checkpoint=result.folder)

    On a GPU without `memory_limit`, the second run needs `micro_batch` or a process of its own.

    Args:
      config, resume, callback, progress, stopping: As for `train`.
      options: Fields of `PretrainConfig`.

    Returns:
      The run folder, the summary and the best evaluation.

    Raises:
      ConfigError, InputError, RunError: As for `train`.
    """
    events = pretraining_events(
        config, resume=resume, progress=progress, stopping=stopping, **options
    )
    from bertaccum.training.events import collect

    with contextlib.closing(events):
        return collect(events, callback or callback_of(progress))


@takes(PretrainConfig, HIDDEN)
def pretraining_events(
    config: PretrainConfig | None = None,
    *,
    resume: str | Path | None = None,
    progress: Progress = silent,
    stopping: Stopping | None = None,
    **options: Any,
) -> Generator[Event, None, None]:
    """Train as `pretrain` does, and yield each event as it happens; see `training_events`.

    Args:
      config, resume, progress, stopping: As for `train`.
      options: Fields of `PretrainConfig`.

    Returns:
      The events of the run.

    Raises:
      ConfigError, InputError, RunError: As for `training_events`.
    """
    return _events(PretrainConfig, config, resume, progress, stopping, options)


def _events(
    kind: type[TrainConfig],
    config: TrainConfig | None,
    resume: str | Path | None,
    progress: Progress,
    stopping: Stopping | None,
    options: dict[str, Any],
) -> Generator[Event, None, None]:
    """Start or resume a run, and return its events."""
    from bertaccum.training.inputs import check_resumed, check_run

    if resume is not None:
        if config is not None:
            what = "a run is resumed with its own configuration"
            raise TypeError(f"{what}; pass options, not `config`")
        inputs = check_resumed(Path(resume), options, progress)
        from bertaccum.training.train import resume as resume_run

        return resume_run(Path(resume), options, progress, stopping, inputs)
    whole = configured(kind, config, options)
    inputs = check_run(whole, progress)
    from bertaccum.training.train import train as start_run

    return start_run(whole, progress, stopping, _named(whole, config, options), inputs)


def _named(
    whole: TrainConfig, config: TrainConfig | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the options that the caller set, with the plain values that `whole` contains."""
    names = options if config is None else named_options(whole)
    return {n: getattr(whole, n) for n in names if n not in hidden_options(type(whole))}
