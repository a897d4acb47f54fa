"""Everything that determines the tokens of a text."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bertaccum.bert.encoder_config import ID_BITS
from bertaccum.bert.vocabulary import Vocabulary
from bertaccum.options.commands import FIRST, HEAD, HEAD_TAIL, TAIL, StepConfig

# Tokens as `packed_tokens` describes them: the bits of an ID, then a segment, the start of another
# passage, and a tag counted from 1.
TAG_BIT = ID_BITS + 2
SEGMENT = 2**ID_BITS
NEXT_PASSAGE = 2 * SEGMENT
TAG = 2**TAG_BIT
MAX_TAGS = 2**31 // TAG - 1

# [CLS] and [SEP], which every passage has.
_SPECIAL = 2
# [CLS] a [SEP] b [SEP]
SHORTEST_PAIR = 5
# Default stride, as a fraction of the other tokens of a passage.
_STRIDE = 0.75


@dataclass(frozen=True)
class Tokenization:
    """How texts become tokens."""

    vocabulary: Vocabulary  # Vocabulary of the model, with its cleaning of texts.
    max_seq_length: int  # Maximum number of tokens per passage, including [CLS] and [SEP].
    # Fraction of the tokens of a truncated text that come from its beginning; the others come from
    # its end (Sun et al. 2019, https://arxiv.org/abs/1905.05583).
    head_fraction: float = 1.0
    # Maximum number of passages of a text (the option `windows`). Texts that are longer than all of
    # them together are truncated.
    passages: int = 1
    # Number of tokens from the start of a passage to the start of the next one; None for three
    # quarters of a passage, so that passages overlap by a quarter.
    stride: int | None = None
    # For texts that are words between spaces, which of their pieces are read, `first` or `all`;
    # None for other texts.
    words: str | None = None

    @property
    def step(self) -> int:
        """The number of tokens from the start of a passage to the start of the next one."""
        return self.stride or math.ceil(_STRIDE * (self.max_seq_length - _SPECIAL))

    @property
    def longest_text(self) -> int:
        """The number of tokens of the longest text that is not truncated, with [CLS] and [SEP]."""
        return self.max_seq_length + (self.passages - 1) * self.step

    def identity(self) -> list[object]:
        """Return values for JSON that differ for tokenizations that give other tokens."""
        of_passages = [self.max_seq_length, self.passages, self.step]
        of_words = [self.words] if self.words else []
        return [of_passages, self.head_fraction, self.vocabulary.identity(), *of_words]


def tokenization_of(
    vocabulary: Vocabulary, config: StepConfig, training: bool = False
) -> Tokenization:
    """Return how a model with this vocabulary tokenizes texts, given the options of its run.

    The options must name the task.

    Args:
      training: Whether the texts are trained on; only then `label_pieces` has an effect.
    """
    fraction = {HEAD: 1.0, TAIL: 0.0, HEAD_TAIL: config.head_fraction}[config.truncate]
    length, passages = config.max_seq_length, config.windows
    words = (config.label_pieces if training else FIRST) if config.tags_words else None
    return Tokenization(vocabulary, length, fraction, passages, config.stride, words)
