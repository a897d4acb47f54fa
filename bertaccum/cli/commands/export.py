"""`bertaccum export`."""

from __future__ import annotations

from typing import Any

from bertaccum import api
from bertaccum.cli.display import sentences
from bertaccum.cli.display.view import View
from bertaccum.cli.options import command, json_option, options, shown
from bertaccum.cli.shared import announce_run, print_result
from bertaccum.options.commands import ExportConfig


@command()
@options(ExportConfig)
@json_option
@shown
def export(view: View, as_json: bool, **values: Any) -> None:
    """Export the best model of a run for other tools to load.

    \b
    Examples:
      bertaccum export
      bertaccum export --format huggingface
      bertaccum export --format tflite --quantize int8
      bertaccum export --run runs/20260102-030405 --out model
    """
    with view:
        announce_run(view, values["run"])
        view.note("loading and tracing the model")
        result = api.export(**values)
    record = vars(result) | {"folder": str(result.folder)}
    print_result(as_json, record, lambda _: sentences.exported(result))
