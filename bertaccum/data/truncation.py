"""Statistics of the lengths of texts, including how many texts are truncated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Truncation:
    """The lengths of a TSV's texts before truncation, in tokens including [CLS] and [SEP].

    Args:
      max_seq_length: Maximum number of tokens per text; longer texts are truncated.
      texts: Number of texts in the TSV.
      longer: Number of texts that are truncated.
      median: Median length.
      longest: Length of the longest text.
    """

    max_seq_length: int
    texts: int
    longer: int
    median: int
    longest: int

    def __str__(self) -> str:
        percent = round(100 * self.longer / self.texts)
        share = f"{percent}% of the texts are" if percent else "less than 1% of the texts are"
        return (
            f"{share if self.longer else 'no text is'} longer than `max_seq_length`"
            f" {self.max_seq_length} (median {self.median:,}, longest {self.longest:,} tokens)"
        )
