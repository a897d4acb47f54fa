"""The commands as Python functions, such as `bertaccum.train(...)`.

Each function takes the options of its command as keyword arguments, or as a dataclass from
`bertaccum.options.commands`; names and defaults are those of the command. The functions print
nothing. An error that the command would report is raised as a `BertAccumError`; wrong arguments
raise a TypeError.

Most of this module consists of docstrings, from which the Python reference is generated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bertaccum.errors import ConfigError
from bertaccum.options.commands import (
    EvalConfig,
    ExportConfig,
    PlanConfig,
    PredictConfig,
    ReportConfig,
    ServeConfig,
    TrainConfig,
)
from bertaccum.options.fields import Options, named_options
from bertaccum.options.other_names import explain_option
from bertaccum.options.prepare import PrepareConfig
from bertaccum.options.pretraining import HIDDEN, PretrainConfig
from bertaccum.runs.paths import target_of
from bertaccum.system.atomic import complete_folder, write_text
from bertaccum.system.files import check_writable
from bertaccum.system.progress import Note, Progress, ignore_note, silent
from bertaccum.system.stopping import Stopping

if TYPE_CHECKING:
    from bertaccum.inference.results import EvalResult, ExportResult, Prediction
    from bertaccum.planning.plan_result import PlanResult
    from bertaccum.training.events import Event, RunResult
    from bertaccum.training.seed_sweep import SeedsResult
    from data_prep.preparation import PrepareResult


_Function = TypeVar("_Function", bound=Callable[..., Any])
_Config = TypeVar("_Config", bound=Options)
# Maximum number of misclassified examples in the report of a run.
_MISTAKES = 20


def _takes(kind: type, hidden: Collection[str] = ()) -> Callable[[_Function], _Function]:
    """Add the options of a configuration to a function's signature, for `help` and completion.

    `**options` in the source stands for them, so that each option is declared once. A call with an
    unknown option raises a TypeError.
    """

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        keyword = inspect.Parameter.VAR_KEYWORD
        own = {n: p for n, p in signature.parameters.items() if p.kind is not keyword}
        options = [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default)
            for f in dataclasses.fields(kind)
            if f.name not in own and f.name not in hidden
        ]
        shown = signature.replace(parameters=[*own.values(), *options])

        @functools.wraps(function)
        def checked(*arguments: Any, **given: Any) -> Any:
            for name in given.keys() - shown.parameters.keys():
                close = difflib.get_close_matches(name, shown.parameters, n=1)
                hint = f"did you mean {close[0]!r}?" if close else ""
                called = function.__name__
                hint = explain_option(name, called, {called: shown.parameters}) or hint
                raise TypeError(f"{called}() has no option {name!r}{hint and f'; {hint}'}")
            return function(*arguments, **given)

        checked.__signature__ = shown  # type: ignore[attr-defined]
        return cast(_Function, checked)

    return decorate


def _configured(kind: type[_Config], config: _Config | None, options: Any) -> _Config:
    config = kind(**options) if config is None else dataclasses.replace(config, **options)
    if hasattr(config, "run"):
        config = dataclasses.replace(config, **{"run": str(target_of(Path(config.run)))})
    return config


def _callback_of(progress: Progress) -> Callable[[Event], None] | None:
    """Return the method of a view that shows events; None for other callbacks."""
    return getattr(progress, "event", None)


@_takes(PrepareConfig)
def prepare(
    config: PrepareConfig | None = None,
    *,
    progress: Progress = silent,
    note: Note = ignore_note,
    **options: Any,
) -> PrepareResult:
    """Write train.tsv, dev.tsv, test.tsv and a manifest, as `bertaccum prepare` does.

    Args:
      config: The options; `options` override it. If it is None, the defaults apply.
      progress: Called with the name of a phase, the amount of finished work and the total.
      note: Called with messages about how the files are read.
      options: Fields of `PrepareConfig`.

    Returns:
      The data folder, its manifest, and whether the folder already contained these files.

    Raises:
      ConfigError: The folder must not be overwritten, or options contradict each other.
      InputError: The source or one of its rows cannot be used.
      RunError: The files cannot be written.
    """
    config = _configured(PrepareConfig, config, options)
    from bertaccum.bert.tokenizer_files import learn_vocabulary
    from data_prep.preparation import prepare as run

    return run(config, progress, learn_vocabulary, note)


def models() -> list[dict[str, Any]]:
    """Return a record for each released model, as `bertaccum models --json` prints it."""
    from bertaccum.bert.download import listed_presets

    return listed_presets()


def doctor() -> dict[str, Any]:
    """Check the installation, and return the record that `bertaccum doctor --json` prints.

    A separate process imports TensorFlow, because the import may crash.

    Returns:
      The versions, devices and other facts that a bug report needs. `checks` contains a dict for
        each check, with `subject`, `status` (ok, warning or failed), `detail` and `remedy`, and
        `passed` is False if a check failed.
    """
    from bertaccum.inspection.examination import examine

    return examine()


@_takes(PlanConfig)
def plan(
    config: PlanConfig | None = None, *, progress: Progress = silent, **options: Any
) -> PlanResult:
    """Find the fastest micro-batch size that fits in memory, as `bertaccum plan` does.

    Args:
      config: The options; `options` override it. If it is None, the defaults apply.
      progress: Called with the name of a phase, the amount of finished work and the total.
      options: Fields of `PlanConfig`.

    Returns:
      The plan and the measurements. The method `require_plan()` of the result returns the plan. If
      nothing fits, it raises a `RunError` that says what would fit.

    Raises:
      ConfigError, InputError: A file, folder or option cannot be used.
      RunError: The measurement process failed.
    """
    config = _configured(PlanConfig, config, options)
    from bertaccum.training.inputs import check_plan

    check_plan(config, progress)
    from bertaccum.planning.planner import plan_for_options as run

    return run(config, progress)


@_takes(TrainConfig)
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
        return collect(events, callback or _callback_of(progress))


@_takes(TrainConfig)
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
    whole = _configured(TrainConfig, config, options)
    events = training_events(whole, seeds=seeds, progress=progress, stopping=stopping)
    from bertaccum.training.seed_sweep import collect_seeds

    with contextlib.closing(events):
        callback = callback or _callback_of(progress)
        return collect_seeds(whole, Path(whole.out or ""), seeds, events, callback)


@_takes(TrainConfig)
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
    whole = _configured(TrainConfig, config, options)
    from bertaccum.training.inputs import check_seeds

    out = check_seeds(whole, seeds, progress)
    from bertaccum.training.sweep import search

    named = options if config is None else named_options(whole)
    callback = callback or _callback_of(progress)
    return search(whole, out, grid, seeds, halving, named, progress, stopping, callback)


@_takes(TrainConfig)
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
    whole = _configured(TrainConfig, config, options)
    from bertaccum.training.inputs import check_run

    inputs = check_run(whole, progress)
    from bertaccum.training.rate_finder import find_rate

    return find_rate(whole, inputs, progress)


@_takes(TrainConfig)
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

    whole = _configured(TrainConfig, config, options)
    named = options if config is None else named_options(whole)
    out = check_seeds(whole, seeds, progress)
    from bertaccum.training.seed_sweep import train_seeds as run_seeds

    return run_seeds(whole, out, seeds, named, progress, stopping)


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
    whole = _configured(kind, config, options)
    named = options if config is None else named_options(whole)
    inputs = check_run(whole, progress)
    from bertaccum.training.train import train as start_run

    return start_run(whole, progress, stopping, named, inputs)


@_takes(PretrainConfig, HIDDEN)
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
        return collect(events, callback or _callback_of(progress))


@_takes(PretrainConfig, HIDDEN)
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


@_takes(EvalConfig)
def evaluate(
    config: EvalConfig | None = None,
    *,
    progress: Progress = silent,
    note: Note = ignore_note,
    keep: bool = True,
    **options: Any,
) -> EvalResult:
    """Evaluate the best model of a run, as `bertaccum eval` does.

    Args:
      config: The options; `options` override it. If it is None, the defaults apply.
      progress: Called with the name of a phase, the amount of finished work and the total.
      note: Called with messages about how `file` is read.
      keep: Whether to write the result to the run folder.
      options: Fields of `EvalConfig`.

    Returns:
      The scores of the model and of each class, and the confusion matrix.

    Raises:
      ConfigError: Options contradict each other, or `file` has no column with the given name or
        number.
      InputError: The run or the table cannot be used.
      RunError: A single example does not fit in memory.
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
    config: ExportConfig | None = None,
    *,
    confirm: Callable[[str], bool] | None = None,
    **options: Any,
) -> ExportResult:
    """Export the best model of a run for other tools, as `bertaccum export` does.

    Args:
      config: The options; `options` override it. If it is None, the defaults apply.
      confirm: With `push`, called with a question; the model is uploaded if it returns True. None
        to upload without asking.
      options: Fields of `ExportConfig`.

    Returns:
      The output folder, its size, and the address of the model if it was uploaded.

    Raises:
      ConfigError: The folder is not empty or cannot be created, or safetensors is not installed.
      InputError: The run or its best checkpoint is missing or damaged, or it cannot be uploaded.
      RunError: The model cannot be written.
    """
    config = _configured(ExportConfig, config, options)
    from bertaccum.inference.inputs import check_export

    check_export(config)
    from bertaccum.inference.export import export as run

    return run(config, confirm)


@_takes(ReportConfig)
def report(
    run: str | Path | None = None,
    config: ReportConfig | None = None,
    *,
    progress: Progress = silent,
    **options: Any,
) -> Path:
    """Write an HTML page about a run, as `bertaccum report` does.

    Args:
      run: The run folder; overrides that of `config`. If the run has no best checkpoint, the page
        contains no scores.
      config: The options; `options` override it. If it is None, the defaults apply.
      progress: Called with the name of a phase, the amount of finished work and the total.
      options: Fields of `ReportConfig`.

    Returns:
      The path of the HTML file.

    Raises:
      ConfigError: The file cannot be written.
      InputError: The run cannot be read.
    """
    own = {} if run is None else {"run": str(run)}
    config = _configured(ReportConfig, config, options | own)
    from bertaccum.reporting.report_page import page
    from bertaccum.runs.record import read_record

    record = read_record(Path(config.run))
    out = Path(config.out) if config.out else record.paths.page
    check_writable(out, "`out`")
    judged: tuple[dict[str, Any] | None, list[dict[str, Any]]] = None, []
    has_best, blanks = complete_folder(record.paths.best).is_dir(), list[dict[str, str]]()
    if has_best and record.config.predicts_masked:
        from bertaccum.inference.mask_filler import MaskFiller

        blanks = MaskFiller(config.run, PredictConfig.batch, None).blanks(_MISTAKES, progress)
        judged = {**(record.best or {}), "data": "dev"}, []
    elif has_best:
        from bertaccum.inference.evaluate import evaluation, most_wrong, predictions
        from bertaccum.inference.inputs import evaluated_table

        wanted = EvalConfig(run=config.run, split=config.split)
        found = predictions(wanted, evaluated_table(wanted), progress)
        judged = evaluation(found).record(), most_wrong(found, _MISTAKES)
    # A link that the user names is followed; one in the run folder is replaced.
    write_text(out.resolve() if config.out else out, page(record, *judged, blanks))
    return out


@_takes(PredictConfig)
def predict(
    texts: Iterable[str | tuple[str, str]] | None = None,
    config: PredictConfig | None = None,
    *,
    note: Note = ignore_note,
    **options: Any,
) -> Iterator[Prediction]:
    """Predict the classes of texts with the best model of a run, as `bertaccum predict` does.

    Args:
      texts: Any number of texts, possibly from a generator. A pair of texts is a tuple, a string
        with a tab, or a JSON string with `text` and `text_pair`. If it is None, `file` is read.
      config: The options; `options` override it. If it is None, the defaults apply.
      note: Called with messages about how `file` is read.
      options: Fields of `PredictConfig`.

    Returns:
      A prediction for each text, in the order of the texts.

    Raises:
      ConfigError: `file` has no column with the given name or number.
      InputError: The run or the texts cannot be used.
      RunError: A single example does not fit in memory.
    """
    config = _configured(PredictConfig, config, options)
    if texts is None and config.file is None:
        raise TypeError("predict() needs texts or `file`")
    from bertaccum.inference.inputs import check_predict

    words = check_predict(config).tags_words
    from bertaccum.inference.predict import predict as run
    from data_prep.tables.columns import read_options
    from data_prep.tables.texts_to_classify import read_texts

    if isinstance(texts, str):
        texts = [texts]
    if texts is None:
        assert config.file is not None
        reading = read_options(config, label_column=None, words=words)
        texts = read_texts(Path(config.file), reading, note)
    return run(config, texts)


@_takes(ServeConfig)
def serve(
    config: ServeConfig | None = None,
    *,
    ready: Note = ignore_note,
    note: Note = ignore_note,
    **options: Any,
) -> None:
    """Serve the best model of a run over HTTP, as `bertaccum serve` does.

    The function returns only by an exception: after SIGINT or SIGTERM, requests in progress finish,
    and then the signal takes its usual effect, such as KeyboardInterrupt. Call it in the main
    thread.

    Args:
      config: The options; `options` override it. If it is None, the defaults apply.
      ready: Called with the address, such as http://127.0.0.1:8000, when the service accepts
        requests.
      note: Called with messages about failures of the service.
      options: Fields of `ServeConfig`.

    Raises:
      ConfigError: The service cannot listen at the address, or a package of the extra `serve` is
        not installed.
      InputError: The run or its best checkpoint is missing or damaged.
    """
    config = _configured(ServeConfig, config, options)
    from bertaccum.inference.inputs import check_serve

    check_serve(config)
    from bertaccum.serving.http_server import bound

    # TensorFlow and the model take seconds to load, so a wrong address is reported before.
    with bound(config) as listener:
        from bertaccum.inference.predict import TextClassifier
        from bertaccum.serving.http_server import serve as run

        classifier = TextClassifier(config.run, config.batch, config.memory_limit)
        run(classifier, config, listener, ready, note)
