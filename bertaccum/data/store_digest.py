"""Names of token stores."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from bertaccum.bert.tokenization import Tokenization
from bertaccum.tasks.labels import Labels
from data_prep.tables.manifest import is_prepared

# Increment this number if the same inputs would result in a different store.
_FORMAT = 8


def store_digest(tsv: Path, contents: str, labels: Labels, tokenization: Tokenization) -> str:
    """Return the name of a token store: a digest of everything that determines its contents.

    Args:
      tsv: Path of the TSV. Files that `bertaccum prepare` wrote are parsed differently from others.
    """
    table = [contents, is_prepared(tsv)]
    of_labels = [labels.values, labels.pairs, labels.task, labels.mean, labels.std]
    of_labels += [labels.format] if labels.format else []
    key = json.dumps([_FORMAT, table, of_labels, tokenization.identity()])
    return hashlib.sha256(key.encode()).hexdigest()[:32]
