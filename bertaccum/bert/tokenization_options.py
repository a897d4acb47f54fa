"""The options that decide how texts become tokens."""

from __future__ import annotations

from bertaccum.bert.tokenization import Tokenization
from bertaccum.bert.vocabulary import Vocabulary
from bertaccum.options.commands import HEAD, HEAD_TAIL, TAIL, StepConfig


def tokenization_of(vocabulary: Vocabulary, config: StepConfig) -> Tokenization:
    """Return how a model with this vocabulary tokenizes texts, given the options of its run."""
    fraction = {HEAD: 1.0, TAIL: 0.0, HEAD_TAIL: config.head_fraction}[config.truncate]
    length, passages = config.max_seq_length, config.windows
    return Tokenization(vocabulary, length, fraction, passages, config.stride)
