"""`bertaccum pretrain`: train an encoder further on plain text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from bertaccum import api
from bertaccum.cli.commands.train import follow, resume_option
from bertaccum.cli.config_file import config_option
from bertaccum.cli.display.run_tables import print_summary
from bertaccum.cli.display.view import View
from bertaccum.cli.options import command, is_named, json_option, options, shown
from bertaccum.cli.shared import print_result
from bertaccum.options.pretraining import HIDDEN, PretrainConfig


def _is_recorded(key: str, given: Mapping[str, Any]) -> bool:
    """Return whether config.yaml of a run contains an option that only `train` has."""
    of_text, default = given.get("text"), str(getattr(PretrainConfig, key, None)).lower()
    return key in HIDDEN and given[key] == (of_text if key == "data" else default)


@command()
@config_option(_is_recorded)
@resume_option
@options(PretrainConfig, HIDDEN)
@json_option
@shown
def pretrain(view: View, as_json: bool, resume: str | None, **values: Any) -> None:
    """Let a model read your own texts before you fine-tune it.

    A part of the tokens is masked, and the model learns to predict them. Other tokens are masked in
    each epoch. A model that has read the texts of its field often needs fewer labeled examples.

    \b
    Examples:
      bertaccum pretrain --text reviews.txt --init-checkpoint bert-tiny --out runs/read
      bertaccum pretrain --text data/yelp_polarity --max-updates 1000
      bertaccum train --init-checkpoint runs/read
      bertaccum predict --run runs/read "The food was [MASK]."
    """
    named = {name: value for name, value in values.items() if is_named(name)}
    if resume is None:
        PretrainConfig(**named)  # Report invalid options before TensorFlow is imported.
    began = time.monotonic()
    start, summaries = follow(view, api.pretraining_events, {"resume": resume, **named})
    if start is not None and start.worker == 0:
        folder, summary, took = str(start.folder), summaries[-1], time.monotonic() - began
        print_result(as_json, summary, lambda _: print_summary(summary, folder, took))
