"""How many texts are longer than a model reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Truncation:
    """The lengths of a TSV's texts, in tokens with [CLS] and [SEP], before truncation.

    Args:
      max_seq_length: tokens that a longer text is cut to.
      texts: in the TSV.
      longer: of them, those that are cut.
      median: length.
      longest: length.
    """

    max_seq_length: int
    texts: int
    longer: int
    median: int
    longest: int

    def __str__(self) -> str:
        percent = round(100 * self.longer / self.texts)
        share = f"{percent} % of the texts are" if percent else "less than 1 % of the texts are"
        return (
            f"{share if self.longer else 'no text is'} longer than `max_seq_length`"
            f" {self.max_seq_length} (median {self.median:,}, longest {self.longest:,} tokens)"
        )
