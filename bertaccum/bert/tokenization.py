"""Everything that determines the tokens of a text. This module does not import TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass

from bertaccum.bert.vocabulary import Vocabulary


@dataclass(frozen=True)
class Tokenization:
    """How texts become tokens.

    Args:
      vocabulary: Vocabulary of the model, with its cleaning of texts.
      max_seq_length: Maximum number of tokens per text, including [CLS] and [SEP]; longer texts
        are truncated.
      head_fraction: Fraction of the tokens of a truncated text that come from its beginning; the
        others come from its end (Sun et al. 2019, https://arxiv.org/abs/1905.05583).
    """

    vocabulary: Vocabulary
    max_seq_length: int
    head_fraction: float = 1.0

    def identity(self) -> list[object]:
        """Return values for JSON that differ for tokenizations that give other tokens."""
        return [self.max_seq_length, self.head_fraction, self.vocabulary.identity()]
