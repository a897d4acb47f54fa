"""`bertaccum advise`: which target batch the gradients of a run suggest."""

from __future__ import annotations

from pathlib import Path

from bertaccum.cli.display import sentences
from bertaccum.cli.display.comparison_tables import print_advice
from bertaccum.cli.options import command, json_option, options, run_argument
from bertaccum.cli.shared import print_result
from bertaccum.options.commands import ShowConfig
from bertaccum.options.metrics import warning
from bertaccum.runs.record import read_record, undamaged


@command()
@run_argument
@options(ShowConfig)
@json_option
def advise(run: str, as_json: bool) -> None:
    """Suggest a target batch from the gradients of a run.

    RUN is the run folder; it is a shorter form of --run. The advice uses the gradient noise scale,
    which training estimates. Up to about this batch size, doubling the batch nearly halves the
    number of updates.

    \b
    Examples:
      bertaccum advise
      bertaccum advise runs/20260102-030405 --json
    """
    from bertaccum.reporting.batch_advice import advice

    record = read_record(Path(run))
    with undamaged(Path(run)):
        found, doubt = advice(record), warning(record.best or {})
    print_result(as_json, found, print_advice)
    if doubt:
        sentences.note(f"note: {doubt}, so another learning rate matters more than the batch")
