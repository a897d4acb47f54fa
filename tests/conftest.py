"""What every test shares: quiet logs, a cache of its own, the data beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from bertaccum.data.token_store import TokenStore

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
# As the program has it; the snippets of docs/ run as users of the library do, with Keras 3.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the repository; skips where there is none."""
    default = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("BERTACCUM_SHARED", default))
    if not (folder / "README.md").is_file():
        pytest.skip(f"no shared data at {folder} (set BERTACCUM_SHARED)")
    return folder


@pytest.fixture(scope="session")
def transformers_python() -> Path:
    """The interpreter of an environment with transformers; skips where it was not made."""
    root = Path(__file__).resolve().parents[1]
    python = root / "build/peers/environments/huggingface/bin/python"
    if not python.exists():
        pytest.skip(f"no transformers (make {python.parents[1].relative_to(root)})")
    return python


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test may read or write the user's cache, nor may a fixture of a module."""
    os.environ["BERTACCUM_CACHE"] = str(tmp_path_factory.getbasetemp() / "cache")


@pytest.fixture(scope="session")
def store() -> TokenStore:
    """A token store of 100 random examples of 3 to 20 tokens, in two classes."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 21, 100)
    return TokenStore(
        token_ids=rng.integers(1, 50, lengths.sum()).astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        labels=rng.integers(0, 2, 100).astype(np.int32),
    )
