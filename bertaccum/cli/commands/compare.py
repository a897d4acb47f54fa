"""`bertaccum compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bertaccum.cli.display import sentences
from bertaccum.cli.display.comparison_tables import print_comparison
from bertaccum.cli.options import command, json_option, options
from bertaccum.cli.shared import print_result
from bertaccum.options.commands import CompareConfig


@command()
@click.argument("runs", type=click.Path(), nargs=-1, required=True)
@options(CompareConfig)
@json_option
def compare(as_json: bool, runs: tuple[str, ...], **values: Any) -> None:
    """Draw the curves of several runs and list how the runs differ.

    The horizontal axis counts examples seen, not updates, so that runs with different target
    batches can be compared. Runs may still be in progress.

    \b
    Examples:
      bertaccum compare runs/batch-8 runs/batch-32
      bertaccum compare runs/2026* --out figures --smooth 2000
      bertaccum compare runs/first runs/latest --json
    """
    if len(runs) < 2:
        raise click.UsageError("compare needs at least two runs")
    config = CompareConfig(**values)
    from bertaccum.reporting.comparison import compare as run

    result = run(config, [Path(path) for path in runs])
    print_result(as_json, result, print_comparison)
    if result["missing_characters"]:
        sentences.note(
            f"note: no installed font has the characters {result['missing_characters']}, so"
            " compare.png shows boxes instead; install a font that has them, such as Noto Sans CJK,"
            " or open compare.svg"
        )
