"""`bertaccum prepare`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bertaccum import api
from bertaccum.commands.common import tables
from bertaccum.commands.options import json_option, options, shown
from bertaccum.config import PrepareConfig
from bertaccum.display import text

if TYPE_CHECKING:
    from bertaccum.display.view import View


@click.command()
@options(PrepareConfig)
@json_option
@shown
def prepare(view: View, as_json: bool, **values: Any) -> None:
    """Write train.tsv, dev.tsv, test.tsv and a manifest.

    \b
    Examples:
      bertaccum prepare
      bertaccum prepare --archive yelp_review_polarity_csv.tgz
      bertaccum prepare --source sample
      bertaccum prepare --source csv --train-file mine.csv --text-column body --label-column stars
    """
    with view:
        done = api.prepare(progress=view, **values)
        if doubt := text.small_dev(done.manifest):
            view.note(doubt)
    if as_json:
        text.result_json(done.manifest)
    else:
        tables().prepared(str(done.folder), done.manifest, done.unchanged)
