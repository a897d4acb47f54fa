"""`bertaccum prepare`."""

from __future__ import annotations

from typing import Any

from bertaccum import api
from bertaccum.cli.display.data_notes import notes
from bertaccum.cli.display.tables import print_prepared
from bertaccum.cli.display.view import View
from bertaccum.cli.options import command, json_option, options, shown
from bertaccum.cli.shared import print_result
from bertaccum.options.prepare import PrepareConfig


@command()
@options(PrepareConfig)
@json_option
@shown
def prepare(view: View, as_json: bool, **values: Any) -> None:
    """Prepare data: write train.tsv, dev.tsv, test.tsv and a manifest.

    \b
    Examples:
      bertaccum prepare
      bertaccum prepare --archive yelp_review_polarity_csv.tgz
      bertaccum prepare --source sample
      bertaccum prepare --source csv --train-file mine.csv --text-column body --label-column stars
      zcat part*.gz | bertaccum prepare --source csv --train-file - --text-column 2 --label-column 1
      bertaccum prepare --source csv --train-file all.csv --test-fraction 0.1 --dev-fraction 0.1
      bertaccum prepare --source csv --train-file aclImdb/train --test-file aclImdb/test
      bertaccum prepare --source glue --dataset mrpc --folder glue_data/MRPC
      bertaccum prepare --source tfds --dataset imdb_reviews --dev-fraction 0.1
      bertaccum prepare --source hub --dataset stanfordnlp/sst2
    """
    with view:
        done = api.prepare(progress=view, note=view.note, **values)
        for line in notes(done.manifest):
            view.note(line)
    print_result(as_json, done.manifest, lambda _: print_prepared(done))
