"""A task small enough to train in a test."""

from __future__ import annotations

import numpy as np
import pytest

from bertaccum.data.token_store import TokenStore

WORDS = 50


@pytest.fixture(scope="session")
def store() -> TokenStore:
    """100 random examples of 3 to 20 tokens in two classes."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 21, 100)
    return TokenStore(
        token_ids=rng.integers(1, WORDS, lengths.sum()).astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        labels=rng.integers(0, 2, 100).astype(np.int32),
    )
