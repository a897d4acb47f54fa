"""`bertaccum predict`, `eval` and `export`: uses of the best model of a run."""

from __future__ import annotations

import sys
from typing import Any

import click

from bertaccum import api
from bertaccum.cli.display import run_classifier_files as result_files
from bertaccum.cli.display import sentences
from bertaccum.cli.display.tables import print_evaluation
from bertaccum.cli.display.view import View
from bertaccum.cli.options import command, file_option, json_option, options, shown
from bertaccum.cli.shared import announce_run, announce_split, print_result
from bertaccum.errors import ConfigError
from bertaccum.options.commands import EvalConfig, ExportConfig, PredictConfig
from bertaccum.system.phrases import counted
from bertaccum.system.sizes import format_size


@command()
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@options(PredictConfig)
@file_option(
    "--results",
    help="Write the probabilities to FILE, formatted like run_classifier's test_results.tsv; for a"
    " test set prepared with --source glue, write the predictions as GLUE accepts them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON record per text.")
@shown
def predict(
    view: View, texts: tuple[str, ...], results: str | None, as_json: bool, **values: Any
) -> None:
    """Predict the labels of texts with the best model of a run.

    Texts are arguments, rows of a file, or lines of stdin; a tab separates the two texts of a pair.
    Predictions are printed as texts arrive, one line per text: the predicted class and its
    probability, the predicted labels and their probabilities, or the predicted number; then the
    text.

    \b
    Examples:
      bertaccum predict "The food was great." "Never again."
      bertaccum predict --file reviews.csv --text-column body --json
      cat reviews.txt | bertaccum predict
      bertaccum predict --file data/yelp_polarity/test.tsv --results test_results.tsv
      bertaccum predict --file data/rte/test.tsv --results RTE.tsv
    """
    if texts and values["file"]:
        raise ConfigError("both texts and --file are given", "omit one of the two")
    if not texts and values["file"] in (None, "-"):
        # Standard input is None if it was closed; its number may then be that of another file.
        if sys.stdin is None or (values["file"] is None and sys.stdin.isatty()):
            what = "no texts are given"
            raise ConfigError(what, "pass texts as arguments, with --file or through a pipe")
        values["file"] = "-"
    if results is not None and as_json:
        what = "--results has a format of its own, so --json has no effect"
        raise ConfigError(what, "omit one of the two")
    PredictConfig(**values)  # Refuses options before the run is read.
    result_files.check_results(results, values["file"])
    with view, result_files.results_file(results) as file:
        announce_run(view, values["run"])
        predictions = api.predict(texts or None, note=view.note, **values)
        count = 0
        if file is None:
            for one in predictions:
                count += 1
                sentences.prediction(one, as_json)
        else:
            count = result_files.write_results(file, predictions, values["file"])
        if values["file"] == "-" and not count:
            view.note("note: standard input is empty, so there is nothing to predict")
    if results is not None:
        sentences.result(f"{results}: {counted(count, 'prediction')}")


@command("eval")
@options(EvalConfig)
@file_option(
    "--results", help="Write the scores to FILE, formatted like run_classifier's eval_results.txt."
)
@json_option
@shown
def evaluate(view: View, results: str | None, as_json: bool, **values: Any) -> None:
    """Evaluate the best model of a run.

    \b
    Examples:
      bertaccum eval
      bertaccum eval --run runs/20260102-030405 --split dev
      bertaccum eval --file mine.csv --text-column body --label-column stars --json
      bertaccum eval --split dev --results eval_results.txt
    """
    result_files.check_results(results, values["file"])
    with view:
        record = announce_run(view, values["run"])
        if values["file"] is None:
            values["split"] = announce_split(view, record, values["split"])
        result = api.evaluate(progress=view, note=view.note, keep=False, **values)
    from bertaccum.inference.evaluate import write_evaluation

    try:
        with result_files.results_file(results) as file:
            if file is not None:
                result_files.write_evaluation(file, result.record())
        write_evaluation(EvalConfig(**values), result)
    finally:  # Writing a file may fail, and the reader of a pipe may end before the output does.
        print_result(as_json, result.record(), print_evaluation)


@command()
@options(ExportConfig)
@click.option("--yes", is_flag=True, help="With --push, upload without asking.")
@json_option
@shown
def export(view: View, as_json: bool, yes: bool, **values: Any) -> None:
    """Export the best model of a run for other tools to load.

    \b
    Examples:
      bertaccum export
      bertaccum export --format huggingface
      bertaccum export --format tflite --quantize int8
      bertaccum export --run runs/20260102-030405 --out model
      bertaccum export --format huggingface --push OWNER/NAME --private
    """
    if values["push"] and not yes and not (sys.stdin and sys.stdin.isatty()):
        what = "--push asks before it uploads, but standard input is no terminal"
        raise ConfigError(what, "pass --yes to upload without a question")

    def confirm(question: str) -> bool:
        view.stop()  # It shows progress where the question belongs.
        return click.confirm(question, err=True)

    with view:
        announce_run(view, values["run"])
        view.note("loading and tracing the model")
        result = api.export(confirm=None if yes else confirm, note=view.note, **values)
        if values["push"] and result.address is None:
            view.note("not uploaded; `hf upload` can upload the folder later")

    def show(_: Any) -> None:
        sentences.result(f"{result.folder}: written, {format_size(result.bytes)}")
        if result.address is not None:
            sentences.result(f"{result.address}: uploaded")

    print_result(as_json, vars(result) | {"folder": str(result.folder)}, show)
