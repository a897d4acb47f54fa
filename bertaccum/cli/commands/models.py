"""`bertaccum models`: the released models that `train` can start from."""

from __future__ import annotations

import click

from bertaccum import api
from bertaccum.cli.display import sentences, tables
from bertaccum.cli.options import command


@command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON record for each model.")
def models(as_json: bool) -> None:
    """List the released models that train can start from.

    `--model` and `--init-checkpoint` select Google's models by their names. `train` checks
    a download with the MD5 digest that the server reports, and its files with their SHA-256 if it
    is known.

    \b
    Examples:
      bertaccum models
      bertaccum models --json
      bertaccum train --model bert-base-multilingual-cased
    """
    records = api.models()
    if as_json:
        for record in records:
            sentences.result_json(record, indent=None)
    else:
        tables.print_models(records)
