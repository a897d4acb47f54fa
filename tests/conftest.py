"""Setup of all tests: quiet logs, a separate cache, and the folder of real data."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from bertaccum.data.token_store import TokenStore

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
# The program sets this too. The snippets of docs/ override it, because library users have Keras 3.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
# No test may fail because the machine is busy.
hypothesis.settings.register_profile("without deadline", deadline=None)
hypothesis.settings.load_profile("without deadline")


def pytest_collection_finish() -> None:
    """Leave imported modules out of garbage collections, which take 7% of the time."""
    gc.freeze()


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of real data beside the repository; skip the test if it is missing."""
    default = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("BERTACCUM_SHARED", default))
    if not (folder / "README.md").is_file():
        pytest.skip(f"no shared data at {folder} (set BERTACCUM_SHARED)")
    return folder


@pytest.fixture(scope="session")
def transformers_python() -> Path:
    """Return the Python of an environment with transformers; skip the test if it is missing."""
    root = Path(__file__).resolve().parents[1]
    python = root / "build/peers/environments/huggingface/bin/python"
    if not python.exists():
        pytest.skip(f"no transformers (run make {python.parents[1].relative_to(root)})")
    return python


@pytest.fixture(scope="session")
def browser() -> str:
    """Return the path of a browser that can run headless; skip the test if none is found."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("no chromium or chrome on PATH")
    return found


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep tests and fixtures away from the user's cache."""
    os.environ["BERTACCUM_CACHE"] = str(tmp_path_factory.getbasetemp() / "cache")


@pytest.fixture
def program(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs the program: exit code, stdout and stderr."""
    from bertaccum.cli.program import main

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    return call


@pytest.fixture(scope="session")
def store() -> TokenStore:
    """Return a token store of 100 random examples of 3 to 20 tokens, in two classes."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 21, 100)
    return TokenStore(
        token_ids=rng.integers(1, 50, lengths.sum()).astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        shapes=np.stack([np.ones(100, np.int32), lengths], axis=1),
        labels=rng.integers(0, 2, 100).astype(np.int32),
        weights=np.ones(100, np.float32),
    )
