"""`bertaccum prepare`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bertaccum import api
from bertaccum.commands.common import tables
from bertaccum.commands.options import command, json_option, options, shown
from bertaccum.config import PrepareConfig
from bertaccum.display import text
from bertaccum.display.data_notes import notes

if TYPE_CHECKING:
    from bertaccum.display.view import View


@command()
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
      bertaccum prepare --source csv --train-file all.csv --test-fraction 0.1 --dev-fraction 0.1
      bertaccum prepare --source csv --train-file aclImdb/train --test-file aclImdb/test
    """
    with view:
        done = api.prepare(progress=view, note=view.note, **values)
        for line in notes(done.manifest):
            view.note(line)
    if as_json:
        text.result_json(done.manifest)
    else:
        tables().prepared(str(done.folder), done.manifest, done.unchanged)
