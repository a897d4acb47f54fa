"""The commands as functions: `import bertaccum; bertaccum.train(...)`.

Each takes the options of its command as keywords, or as a dataclass of `bertaccum.config`, with
the same names and defaults, raises `BertAccumError` for what the command reports, and prints
nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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
from bertaccum.files import standing
from bertaccum.progress import Note, Progress, silent, unheard
from bertaccum.settings import AUTO, delimiter_character, field_names, named_options
from bertaccum.stopping import Stopping

if TYPE_CHECKING:
    from bertaccum.inference.results import Prediction
    from bertaccum.planning.batch_plan import PlanResult
    from bertaccum.training.events import Event
    from data_prep.preparation import PrepareResult

_Config = TypeVar(
    "_Config",
    PrepareConfig,
    PlanConfig,
    TrainConfig,
    EvalConfig,
    ExportConfig,
    ReportConfig,
    PredictConfig,
)
# So many of the examples that a model gets wrong are on its page.
_MISTAKES = 20


def _configured(kind: type[_Config], config: _Config | None, options: dict[str, Any]) -> _Config:
    return kind(**options) if config is None else dataclasses.replace(config, **options)


def prepare(
    config: PrepareConfig | None = None,
    *,
    progress: Progress = silent,
    note: Note = unheard,
    **options: Any,
) -> PrepareResult:
    """Writes train.tsv, dev.tsv, test.tsv and a manifest, as `bertaccum prepare`.

    Args:
      config: all options, or those that `options` do not name; by default the defaults.
      progress: called with what is being done, how much is done, and the total.
      note: called with sentences on how the files are written.
      options: fields of `PrepareConfig`.

    Returns:
      The folder, its manifest, and whether it was there already.
    """
    config = _configured(PrepareConfig, config, options)
    from bertaccum.bert.vocabulary import learn_vocabulary
    from data_prep.preparation import prepare as run

    return run(config, progress, learn_vocabulary, note)


def plan(
    config: PlanConfig | None = None, *, progress: Progress = silent, **options: Any
) -> PlanResult:
    """Measures which micro-batch is the fastest that fits, as `bertaccum plan`.

    Args:
      config: all options, or those that `options` do not name; by default the defaults.
      progress: called with what is being done, how much is done, and the total.
      options: fields of `PlanConfig`.

    Returns:
      What was found; `taken()` is the plan, or raises a `RunError` that says what would fit.
    """
    config = _configured(PlanConfig, config, options)
    from bertaccum.training.preflight import check_plan

    check_plan(config, progress)
    from bertaccum.planning.planner import plan as run

    return run(config, progress)


def train(
    config: TrainConfig | None = None,
    *,
    resume: str | Path | None = None,
    seeds: int | None = None,
    progress: Progress = silent,
    stopping: Stopping | None = None,
    **options: Any,
) -> Iterator[Event]:
    """Trains, as `bertaccum train`: a run goes on as long as its events are taken.

        for event in bertaccum.train(target_batch=32, micro_batch=8):
            if isinstance(event, Updated):
                print(event.update, event.loss)

    Args:
      config: all options, or those that `options` do not name; by default the defaults.
      resume: a run folder to go on with; options may then change what decides no update.
      seeds: train so many times, into folders in `out`, with one seed after the other.
      progress: called with what is being done, how much is done, and the total.
      stopping: what to ask, and be told by, whether to stop; by default nothing does.
      options: fields of `TrainConfig`.

    Returns:
      `Started`, then an `Updated` for each update, with `Evaluated` and `OutOfMemory` between
      them as they happen, then `Finished` or `Stopped` (`bertaccum.training.events`).
    """
    if resume is not None and seeds is not None:
        raise ConfigError("`resume` and `seeds` contradict each other", "drop one of the two")
    if resume is not None and config is not None:
        raise TypeError("train() goes on with a run by its own configuration: name options only")
    whole = _configured(TrainConfig, config, {} if resume is not None else options)
    if resume is not None and (unknown := options.keys() - field_names(TrainConfig)):
        raise TypeError(f"train() has no option {', '.join(sorted(unknown))}")
    from bertaccum.training.preflight import check_resumed, check_run, check_seeds

    if resume is not None:
        check_resumed(Path(resume), options.get("strategy", AUTO), progress)
    elif seeds is not None:
        check_seeds(whole, seeds, progress)
    else:
        check_run(whole, progress)
    from bertaccum.training import train as training
    from bertaccum.training.seed_sweep import train_seeds

    if resume is not None:
        return training.resume(Path(resume), options, progress, stopping)
    if seeds is not None:
        return train_seeds(
            whole,
            seeds,
            options if config is None else named_options(whole),
            lambda own, named: training.train(own, progress, stopping, named),
            lambda path, asked: training.resume(path, asked, progress, stopping),
        )
    return training.train(whole, progress, stopping, options if config is None else None)


def evaluate(
    config: EvalConfig | None = None,
    *,
    progress: Progress = silent,
    note: Note = unheard,
    keep: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Evaluates the best model of a run, as `bertaccum eval`.

    Args:
      config: all options, or those that `options` do not name; by default the defaults.
      progress: called with what is being done, how much is done, and the total.
      note: called with sentences on how `file` is written.
      keep: also write it into the run folder.
      options: fields of `EvalConfig`.

    Returns:
      `accuracy`, `loss`, `matthews_correlation`, `macro_f1`, `majority_class` and
      `majority_accuracy` (of always predicting it), `only_prediction` (the class that is
      predicted for every example, if there is one), `classes` (name, precision, recall, f1 and
      examples of each), `confusion_matrix`, `run`, `update` (of its best model), `data` and
      `examples`.
    """
    config = _configured(EvalConfig, config, options)
    from bertaccum.inference.inputs import evaluated_table

    evaluated_table(config)
    from bertaccum.inference.evaluate import evaluate as run

    result = run(config, progress, note)
    if keep:
        keep_evaluation(config, result)
    return result


def keep_evaluation(config: EvalConfig, result: dict[str, Any]) -> None:
    """Writes what `evaluate` returned into the run folder, and into its model card."""
    from bertaccum.inference.evaluate import write_evaluation

    write_evaluation(config, result)


def export(config: ExportConfig | None = None, **options: Any) -> dict[str, Any]:
    """Writes the best model of a run for others to load, as `bertaccum export`.

    Args:
      config: all options, or those that `options` do not name; by default the defaults.
      options: fields of `ExportConfig`.

    Returns:
      `run`, `format`, `folder`, and `bytes` that were written.
    """
    config = _configured(ExportConfig, config, options)
    from bertaccum.inference.inputs import check_export

    check_export(config)
    from bertaccum.inference.export import export as run

    return run(config)


def report(
    run: str | Path | None = None,
    config: ReportConfig | None = None,
    *,
    progress: Progress = silent,
    **options: Any,
) -> Path:
    """Makes a page of a run, as `bertaccum report`.

    Args:
      run: its folder, instead of that of `config`; without a best checkpoint the page has no
        scores.
      config: all options, or those that `options` do not name; by default the defaults.
      progress: called with what is being done, how much is done, and the total.
      options: fields of `ReportConfig`.

    Returns:
      The HTML file.
    """
    named = {} if run is None else {"run": str(run)}
    config = _configured(ReportConfig, config, options | named)
    from bertaccum.reporting.report_page import write_page
    from bertaccum.reporting.run_record import read_record

    record = read_record(Path(config.run))
    out = Path(config.out) if config.out else record.paths.page
    if out.is_dir() or not out.parent.is_dir():
        raise ConfigError(f"`out` {out} cannot be written", "name a file in an existing folder")
    judged: tuple[dict[str, Any] | None, list[dict[str, Any]]] = None, []
    if standing(record.paths.best).is_dir():
        from bertaccum.inference.evaluate import evaluation, most_wrong, predictions

        found = predictions(EvalConfig(run=config.run, split=config.split), progress)
        judged = evaluation(found), most_wrong(found, _MISTAKES)
    write_page(record, *judged, out)
    return out


def predict(
    texts: Iterable[str] | None = None,
    config: PredictConfig | None = None,
    *,
    note: Note = unheard,
    **options: Any,
) -> Iterator[Prediction]:
    """Predicts with the best model of a run, as `bertaccum predict`.

    Args:
      texts: any number, also from a generator that has not come to its end; without them those
        of `file`.
      config: all options, or those that `options` do not name; by default the defaults.
      note: called with sentences on how `file` is written.
      options: fields of `PredictConfig`.

    Returns:
      For each text, in their order, `text`, `label` and `probabilities` by name.
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
