"""Statistics of the lengths of texts, including how many texts are truncated."""

from __future__ import annotations

from dataclasses import dataclass, field

from bertaccum.system.phrases import percent


@dataclass(frozen=True)
class Truncation:
    """The lengths of a TSV's texts before truncation, in tokens including [CLS] and [SEP]."""

    max_seq_length: int  # Maximum number of tokens per window.
    texts: int
    # Number of texts that are truncated, because they are longer than all windows together.
    longer: int
    median: int  # Median length.
    longest: int  # Length of the longest text.
    # For `max_seq_length` and usual larger values of it, the fraction of all tokens that the model
    # then reads; empty if no text is truncated.
    kept: dict[str, float] = field(default_factory=dict)
    windows: int = 1  # Maximum number of windows per text.
    # The same fraction for `windows` and usual larger values of it; empty for pairs, which cannot
    # be read in windows.
    kept_by_windows: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        share = f"{percent(self.longer / self.texts)} of the texts are"
        several = f"{self.windows} windows of " if self.windows > 1 else ""
        return (
            f"{share if self.longer else 'no text is'} longer than {several}`max_seq_length`"
            f" {self.max_seq_length} (median {self.median:,}, longest {self.longest:,} tokens)"
        )

    def advice(self) -> str:
        """Return a sentence about what larger values of the options keep; "" if unknown."""
        if not self.kept:
            return ""
        more_windows = {
            k: part for k, part in self.kept_by_windows.items() if int(k) > self.windows
        }
        options = {"max_seq_length": self.kept, "windows": more_windows}
        shares = [f"`{name}` {_shares(kept)}" for name, kept in options.items() if kept]
        return (
            f"{'; '.join(shares)} of all tokens; `truncate` chooses the part of a text that is kept"
        )


def _shares(kept: dict[str, float]) -> str:
    """Return what each value keeps, up to the first that keeps everything."""
    shares: list[str] = []
    for value, part in kept.items():
        shares.append(f"{value} keeps {percent(part)}")
        if part == 1.0:
            break
    return ", ".join(shares)
