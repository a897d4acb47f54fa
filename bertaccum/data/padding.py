"""Micro-batches as matrices of tokens, each padded to a shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertaccum.bert.packed_tokens import starts_passage


@dataclass(frozen=True)
class PaddedBatches:
    """Micro-batches, whose rows are passages or padding.

    There are as many examples as rows in each micro-batch; those that fill up their number are
    padding.
    """

    # For each micro-batch, its first token and first row in the arrays below, its rows, its length
    # and its number of examples, [micro_steps, 5] int32.
    micro_batches: np.ndarray
    tokens: np.ndarray  # Tokens of all micro-batches, row by row, [tokens] int32; 0 for padding.
    # For each row, the number of tokens, the index of its example in the micro-batch, and the
    # number of the passage in the example, counted from 0, [rows, 3] int32.
    passages: np.ndarray
    places: np.ndarray  # For each example, its index among the rows, [examples].

    def of_rows(self, values: np.ndarray) -> np.ndarray:
        """Return the values of examples as values of rows, which are 0 for padding."""
        result = np.zeros((len(self.passages), *values.shape[1:]), values.dtype)
        result[self.places] = values
        return result


def pad(
    token_ids: np.ndarray, row_splits: np.ndarray, cuts: np.ndarray, shapes: np.ndarray | None
) -> PaddedBatches:
    """Pad the micro-batches of a window.

    Args:
      shapes: Rows and length of each micro-batch, [micro_steps, 2] int32; None for a row for each
        passage, and the length of the longest one.
    """
    starts = np.union1d(np.flatnonzero(starts_passage(token_ids)), row_splits[:-1])
    starts = starts.astype(np.int64)
    lengths = np.diff(starts, append=row_splits[-1])
    examples = np.searchsorted(row_splits, starts, side="right") - 1
    first = np.searchsorted(examples, cuts)  # first passage of each micro-batch
    counts = np.diff(first)
    if shapes is None:
        longest = np.maximum.reduceat(lengths, first[:-1]) if len(counts) else counts
        shapes = np.stack([counts, longest], axis=1)
    batch = np.repeat(np.arange(len(counts)), counts)  # micro-batch of each passage
    if (counts > shapes[:, 0]).any() or (lengths > shapes[batch, 1]).any():
        raise ValueError("a micro-batch does not fit in its shape")
    row, token = (np.cumsum([0, *sizes]) for sizes in (shapes[:, 0], shapes.prod(axis=1)))
    columns = [token[:-1], row[:-1], *shapes.T, np.diff(cuts)]

    own = np.arange(len(starts)) - first[batch]
    tokens = np.zeros(token[-1], np.int32)
    moved = token[batch] + own * shapes[batch, 1] - starts
    tokens[np.repeat(moved, lengths) + np.arange(len(token_ids))] = token_ids
    passages = np.zeros((row[-1], 3), np.int32)
    # A row of padding is an example of its own.
    passages[:, 1] = np.arange(row[-1]) - np.repeat(row[:-1], shapes[:, 0])
    numbers = np.arange(len(starts)) - np.searchsorted(examples, examples)
    passages[row[batch] + own] = np.stack([lengths, examples - cuts[batch], numbers], axis=1)
    places = np.arange(len(row_splits) - 1) + np.repeat(row[:-1] - cuts[:-1], np.diff(cuts))
    return PaddedBatches(np.stack(columns, axis=1).astype(np.int32), tokens, passages, places)
