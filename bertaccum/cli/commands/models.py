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

    `--model` and `--init-checkpoint` select Google's models by their names. `train` checks a
    download by the SHA-256 of its files, and by the server's MD5 digest where none was published.

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
        tables.models(records)
