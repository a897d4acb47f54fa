"""Functions for a trained model: evaluate, predict, report, export, serve."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertaccum.api.arguments import configured, takes
from bertaccum.errors import ConfigError
from bertaccum.options.commands import (
    EvalConfig,
    ExportConfig,
    PredictConfig,
    ReportConfig,
    ServeConfig,
)
from bertaccum.system.atomic import complete_folder, write_text
from bertaccum.system.files import check_writable
from bertaccum.system.progress import Note, Progress, ignore_note, silent

if TYPE_CHECKING:
    from bertaccum.inference.results import EvalResult, ExportResult, Prediction

# Maximum number of misclassified examples in the report of a run.
_MISTAKES = 20


@takes(EvalConfig)
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
      note: Called with messages about how `file` is read, and about data that has changed.
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
    config = configured(EvalConfig, config, options)
    from bertaccum.inference.inputs import evaluated_table

    table = evaluated_table(config)
    from bertaccum.inference.evaluate import evaluation, predictions, write_evaluation

    result = evaluation(predictions(config, table, progress, note))
    if keep:
        write_evaluation(config, result)
    return result


@takes(PredictConfig)
def predict(
    texts: Iterable[str | Sequence[str]] | None = None,
    config: PredictConfig | None = None,
    *,
    note: Note = ignore_note,
    **options: Any,
) -> Generator[Prediction]:
    """Predict the classes of texts with the best model of a run, as `bertaccum predict` does.

    Args:
      texts: Any number of texts, possibly from a generator. A pair of texts is a tuple or list, a
        string with a tab, or a JSON string with `text` and `text_pair`. Another thread iterates
        over the texts, and reads several thousand ahead. If it is None, `file` is read.
      config: The options; `options` override it. If it is None, the defaults apply.
      note: Called with messages about how `file` is read.
      options: Fields of `PredictConfig`.

    Returns:
      A generator of a prediction for each text, in the order of the texts. If you stop before its
      end, its method `close` releases the model and the texts.

    Raises:
      ConfigError: Both texts and `file` are given, or `file` has no column with the given name or
        number.
      InputError: The run or the texts cannot be used.
      RunError: A single example does not fit in memory.
      TypeError: `texts` is a table or a dict instead of its texts.
    """
    config = configured(PredictConfig, config, options)
    if texts is None and config.file is None:
        raise TypeError("predict() needs texts or `file`")
    if texts is not None and config.file is not None:
        raise ConfigError("both texts and `file` are given", "omit one of the two")
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):  # It iterates over its names.
        raise TypeError("predict() takes an iterable of texts; pass a column, such as df['text']")
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


@takes(ReportConfig)
def report(
    run: str | Path | None = None,
    config: ReportConfig | None = None,
    *,
    progress: Progress = silent,
    note: Note = ignore_note,
    **options: Any,
) -> Path:
    """Write an HTML page about a run, as `bertaccum report` does.

    Args:
      run: The run folder; overrides that of `config`. If the run has no best checkpoint, the page
        contains no scores.
      config: The options; `options` override it. If it is None, the defaults apply.
      progress: Called with the name of a phase, the amount of finished work and the total.
      note: Called with a message if the data has changed since the run began.
      options: Fields of `ReportConfig`.

    Returns:
      The path of the HTML file.

    Raises:
      ConfigError: The file cannot be written, or `split` does not apply to the run.
      InputError: The run cannot be read.
    """
    own = {} if run is None else {"run": str(run)}
    config = configured(ReportConfig, config, options | own)
    from bertaccum.reporting.report_page import page
    from bertaccum.runs.record import read_record

    record = read_record(Path(config.run))
    if config.split is not None and record.config.predicts_masked:
        what = f"`split` {config.split} does not apply to {config.run}, which was pretrained"
        raise ConfigError(what, "omit it")
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
        found = predictions(wanted, evaluated_table(wanted), progress, note)
        judged = evaluation(found).record(), most_wrong(found, _MISTAKES)
    # A link that the user names is followed; one in the run folder is replaced.
    write_text(out.resolve() if config.out else out, page(record, *judged, blanks))
    return out


@takes(ExportConfig)
def export(
    config: ExportConfig | None = None,
    *,
    confirm: Callable[[str], bool] | None = None,
    note: Note = ignore_note,
    **options: Any,
) -> ExportResult:
    """Export the best model of a run for other tools, as `bertaccum export` does.

    Args:
      config: The options; `options` override it. If it is None, the defaults apply.
      confirm: With `push`, called with a question; the model is uploaded if it returns True. None
        to upload without asking.
      note: Called with a sentence if the files name a folder of this machine.
      options: Fields of `ExportConfig`.

    Returns:
      The output folder, its size, and the address of the model if it was uploaded.

    Raises:
      ConfigError: The folder is not empty or cannot be created, or safetensors is not installed.
      InputError: The run or its best checkpoint is missing or damaged, or it cannot be uploaded.
      RunError: The model cannot be written.
    """
    config = configured(ExportConfig, config, options)
    from bertaccum.inference.inputs import check_export

    check_export(config)
    from bertaccum.inference.export import export as run

    return run(config, confirm, note)


@takes(ServeConfig)
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
      RunError: An event loop runs in this thread, as in a notebook.
    """
    config = configured(ServeConfig, config, options)
    from bertaccum.inference.inputs import check_serve

    check_serve(config)
    from bertaccum.serving.http_server import bound

    # TensorFlow and the model take seconds to load, so a wrong address is reported before.
    with bound(config) as listener:
        from bertaccum.inference.predict import TextClassifier
        from bertaccum.serving.http_server import serve as run

        classifier = TextClassifier(config.run, config.batch, config.memory_limit)
        run(classifier, config, listener, ready, note)
