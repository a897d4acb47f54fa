"""The commands as functions: `import bertaccum; bertaccum.train(...)`.

Each function takes the options of its command as keywords, or as a dataclass of
`bertaccum.config`, with the same names and defaults. It raises `BertAccumError` for what the
command reports, and prints nothing.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bertaccum.atomic import standing
from bertaccum.config import (
    EvalConfig,
    ExportConfig,
    PlanConfig,
    PredictConfig,
    PrepareConfig,
    ReportConfig,
    TrainConfig,
)
from bertaccum.errors import ConfigError
from bertaccum.progress import Note, Progress, silent, unheard
from bertaccum.reporting.run_paths import target_of
from bertaccum.settings import AUTO, Options, delimiter_character, field_names, named_options
from bertaccum.stopping import Stopping

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from bertaccum import keywords
    from bertaccum.inference.results import EvalResult, ExportResult, Prediction
    from bertaccum.planning.batch_plan import PlanResult
    from bertaccum.training.events import Event
    from bertaccum.training.run_result import RunResult, SeedsResult
    from data_prep.preparation import PrepareResult

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Config = TypeVar("_Config", bound=Options)
# Number of wrongly classified examples on a run's page.
_MISTAKES = 20


def _takes(kind: type) -> Callable[[_Function], _Function]:
    """Show the options of a configuration in a function's signature, for help and completion."""

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        keyword = inspect.Parameter.VAR_KEYWORD
        own = {n: p for n, p in signature.parameters.items() if p.kind is not keyword}
        options = [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default)
            for f in dataclasses.fields(kind)
            if f.name not in own
        ]
        shown = signature.replace(parameters=[*own.values(), *options])
        function.__signature__ = shown  # type: ignore[attr-defined]
        return function

    return decorate


def _configured(kind: type[_Config], config: _Config | None, options: Any) -> _Config:
    config = kind(**options) if config is None else dataclasses.replace(config, **options)
    if hasattr(config, "run"):
        config = dataclasses.replace(config, **{"run": str(target_of(Path(config.run)))})
    return config


@_takes(PrepareConfig)
def prepare(
    config: PrepareConfig | None = None,
    *,
    progress: Progress = silent,
    note: Note = unheard,
    **options: Unpack[keywords.PrepareOptions],
) -> PrepareResult:
    """Write train.tsv, dev.tsv, test.tsv and a manifest, as `bertaccum prepare`.

    Args:
      config: all options, or those that `options` do not name; by default the defaults.
      progress: called with what is being done, how much of it is done, and the total.
      note: called with sentences on how the files are read.
      options: fields of `PrepareConfig`.

    Returns:
      The folder, its manifest, and whether it was there already.

    Raises:
      ConfigError: the folder is not ours to write, or the options do not fit.
      InputError: the source, or a row of it, cannot be used.
      RunError: the files cannot be written.
    """
    config = _configured(PrepareConfig, config, options)
    from bertaccum.bert.vocabulary import learn_vocabulary
    from data_prep.preparation import prepare as run

    return run(config, progress, learn_vocabulary, note)


@_takes(PlanConfig)
def plan(
    config: PlanConfig | None = None,
    *,
    progress: Progress = silent,
    **options: Unpack[keywords.PlanOptions],
) -> PlanResult:
    """Measure which micro-batch is the fastest that fits, as `bertaccum plan`.

    Args:
      config: all options, or those that `options` do not name; by default the defaults.
      progress: called with what is being done, how much of it is done, and the total.
      options: fields of `PlanConfig`.

    Returns:
      What was measured; `taken()` is the plan, or raises a `RunError` that says what would fit.

    Raises:
      ConfigError, InputError: the data or the model cannot be used.
      RunError: the process that measures failed.
    """
    config = _configured(PlanConfig, config, options)
    from bertaccum.training.preflight import check_plan

    check_plan(config, progress)
    from bertaccum.planning.plan_for_options import plan_for_options as run

    return run(config, progress)


@_takes(TrainConfig)
def train(
    config: TrainConfig | None = None,
    *,
    resume: str | Path | None = None,
    callback: Callable[[Event], None] | None = None,
    progress: Progress = silent,
    stopping: Stopping | None = None,
    **options: Unpack[keywords.TrainOptions],
) -> RunResult:
    """Train a classifier, as `bertaccum train`.

        result = bertaccum.train(data="data/sample", target_batch=32, micro_batch=8)
        print(result.folder, result.best.accuracy)

    Args:
      config: all options, or those that `options` do not name; by default the defaults.
      resume: a run folder to continue; options may then change what decides no update.
      callback: called with each event of the run (`bertaccum.Updated`, `Evaluated`, …).
      progress: called with what is being done, how much of it is done, and the total.
      stopping: asked whether to stop; by default nothing stops the run.
      options: fields of `TrainConfig`.

    Returns:
      The run's folder, its summary and its best evaluation.

    Raises:
      ConfigError: options contradict each other, or those of the run that is resumed.
      InputError: a file cannot be used.
      RunError: the run failed: out of memory, a loss that is not finite, a full disk.
    """
    events = training_events(config, resume=resume, progress=progress, stopping=stopping, **options)
    from bertaccum.training.run_result import collect

    return collect(events, callback)


@_takes(TrainConfig)
def train_seeds(
    seeds: int,
    config: TrainConfig | None = None,
    *,
    callback: Callable[[Event], None] | None = None,
    progress: Progress = silent,
    stopping: Stopping | None = None,
    **options: Unpack[keywords.TrainOptions],
) -> SeedsResult:
    """Train several runs that differ in their seeds, as `bertaccum train` with `seeds`.

    The same call, made again after it was stopped, continues where it stopped.

    Args:
      seeds: number of runs; the first one has the configured seed, each other one the next.
      config, callback, progress, stopping: as for `train`.
      options: fields of `TrainConfig`; `out` is the folder that holds all runs.

    Returns:
      A result for each run, and the spread of their figures.

    Raises:
      ConfigError, InputError, RunError: as `train`.
    """
    whole = _configured(TrainConfig, config, options)
    events = training_events(whole, seeds=seeds, progress=progress, stopping=stopping)
    from bertaccum.training.run_result import collect_seeds

    return collect_seeds(whole, seeds, events, callback)


@_takes(TrainConfig)
def training_events(
    config: TrainConfig | None = None,
    *,
    resume: str | Path | None = None,
    seeds: int | None = None,
    progress: Progress = silent,
    stopping: Stopping | None = None,
    **options: Unpack[keywords.TrainOptions],
) -> Iterator[Event]:
    """Train, yielding each event as it happens; the run continues while events are taken.

        for event in bertaccum.training_events(target_batch=32, micro_batch=8):
            if isinstance(event, bertaccum.Updated):
                print(event.update, event.loss)

    Args:
      config, resume, progress, stopping: as for `train`.
      seeds: number of runs, as for `train_seeds`.
      options: fields of `TrainConfig`.

    Returns:
      `Started`, then an `Updated` for each update, with `Evaluated` and `OutOfMemory` between
      them as they happen, then `Finished` or `Stopped`.

    Raises:
      ConfigError, InputError, RunError: as `train`; the first two before the first event.
    """
    given: dict[str, Any] = dict(options)
    from bertaccum.training.preflight import check_resumed, check_run, check_seeds

    if resume is not None:
        if seeds is not None:
            raise ConfigError("`resume` and `seeds` contradict each other", "drop one of the two")
        if config is not None:
            raise TypeError("train() continues a run with its own configuration: name options only")
        if unknown := given.keys() - field_names(TrainConfig):
            raise TypeError(f"train() has no option {', '.join(sorted(unknown))}")
        check_resumed(Path(resume), given.get("strategy", AUTO), progress)
        from bertaccum.training import train as training

        return training.resume(Path(resume), given, progress, stopping)
    whole = _configured(TrainConfig, config, given)
    named = given if config is None else named_options(whole)
    if seeds is None:
        check_run(whole, progress)
        from bertaccum.training import train as training

        return training.train(whole, progress, stopping, named)
    check_seeds(whole, seeds, progress)
    from bertaccum.training import train as training
    from bertaccum.training.seed_sweep import train_seeds as sweep

    return sweep(
        whole,
        seeds,
        named,
        lambda own, asked: training.train(own, progress, stopping, asked),
        lambda path, asked: training.resume(path, asked, progress, stopping),
    )


@_takes(EvalConfig)
def evaluate(
    config: EvalConfig | None = None,
    *,
    progress: Progress = silent,
    note: Note = unheard,
    keep: bool = True,
    **options: Unpack[keywords.EvalOptions],
) -> EvalResult:
    """Evaluate the best model of a run, as `bertaccum eval`.

    Args:
      config: all options, or those that `options` do not name; by default the defaults.
      progress: called with what is being done, how much of it is done, and the total.
      note: called with sentences on how `file` is read.
      keep: also write the result into the run folder.
      options: fields of `EvalConfig`.

    Returns:
      Scores of the model, of each class, and the confusion matrix.

    Raises:
      ConfigError: options contradict each other.
      InputError: the run or the table cannot be used.
      RunError: a single example does not fit in memory.
    """
    config = _configured(EvalConfig, config, options)
    from bertaccum.inference.inputs import evaluated_table

    table = evaluated_table(config)
    from bertaccum.inference.evaluate import evaluation, predictions, write_evaluation

    result = evaluation(predictions(config, table, progress, note))
    if keep:
        write_evaluation(config, result)
    return result


@_takes(ExportConfig)
def export(
    config: ExportConfig | None = None, **options: Unpack[keywords.ExportOptions]
) -> ExportResult:
    """Write the best model of a run for others to load, as `bertaccum export`.

    Args:
      config: all options, or those that `options` do not name; by default the defaults.
      options: fields of `ExportConfig`.

    Returns:
      What was written, and where.

    Raises:
      ConfigError: the folder exists or cannot be made, or safetensors is not installed.
      InputError: the run or its best checkpoint is missing or damaged.
      RunError: the model cannot be written.
    """
    config = _configured(ExportConfig, config, options)
    from bertaccum.inference.inputs import check_export

    check_export(config)
    from bertaccum.inference.export import export as run

    return run(config)


@_takes(ReportConfig)
def report(
    run: str | Path | None = None,
    config: ReportConfig | None = None,
    *,
    progress: Progress = silent,
    **options: Unpack[keywords.ReportOptions],
) -> Path:
    """Write an HTML page about a run, as `bertaccum report`.

    Args:
      run: its folder, instead of that of `config`; without a best checkpoint the page has no
        scores.
      config: all options, or those that `options` do not name; by default the defaults.
      progress: called with what is being done, how much of it is done, and the total.
      options: fields of `ReportConfig`.

    Returns:
      The HTML file.

    Raises:
      ConfigError: the file cannot be written.
      InputError: the run cannot be read.
    """
    given: dict[str, Any] = dict(options)
    config = _configured(ReportConfig, config, given | ({} if run is None else {"run": str(run)}))
    from bertaccum.reporting.report_page import write_page
    from bertaccum.reporting.run_record import read_record

    record = read_record(Path(config.run))
    out = Path(config.out) if config.out else record.paths.page
    if out.is_dir() or not out.parent.is_dir():
        raise ConfigError(f"`out` {out} cannot be written", "name a file in an existing folder")
    judged: tuple[dict[str, Any] | None, list[dict[str, Any]]] = None, []
    if standing(record.paths.best).is_dir():
        from bertaccum.inference.evaluate import evaluation, most_wrong, predictions
        from bertaccum.inference.inputs import evaluated_table

        wanted = EvalConfig(run=config.run, split=config.split)
        found = predictions(wanted, evaluated_table(wanted), progress)
        judged = dataclasses.asdict(evaluation(found)), most_wrong(found, _MISTAKES)
    write_page(record, *judged, out)
    return out


@_takes(PredictConfig)
def predict(
    texts: Iterable[str] | None = None,
    config: PredictConfig | None = None,
    *,
    note: Note = unheard,
    **options: Unpack[keywords.PredictOptions],
) -> Iterator[Prediction]:
    """Predict classes of texts with the best model of a run, as `bertaccum predict`.

    Args:
      texts: any number, also from a generator that has not come to its end; without them those
        of `file`.
      config: all options, or those that `options` do not name; by default the defaults.
      note: called with sentences on how `file` is read.
      options: fields of `PredictConfig`.

    Returns:
      A prediction for each text, in their order.

    Raises:
      ConfigError: there is no such column.
      InputError: the run or the texts cannot be used.
    """
    config = _configured(PredictConfig, config, options)
    if texts is None and config.file is None:
        raise TypeError("predict() needs texts, or a file")
    from bertaccum.inference.inputs import check_predict

    check_predict(config)
    from bertaccum.inference.predict import predict as run
    from data_prep.table import Reading
    from data_prep.texts import read_texts

    if isinstance(texts, str):
        texts = [texts]
    if texts is None:
        assert config.file is not None
        delimiter = delimiter_character(config.delimiter)
        reading = Reading(config.text_column, None, delimiter, config.encoding)
        texts = read_texts(Path(config.file), reading, note)
    return run(config, texts)
