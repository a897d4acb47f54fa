"""Setup of all tests: quiet logs, a separate cache, real data, and a trained run to share."""

from __future__ import annotations

import fcntl
import functools
import gc
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import hypothesis
import numpy as np
import pytest

from bertaccum.data.token_store import TokenStore
from bertaccum.system.machine import enable_onednn

if TYPE_CHECKING:
    from hub_client import HubClient
    from runs_of_tasks import RunOf

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
# The program sets this too. The snippets of docs/ override it, because library users have Keras 3.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
enable_onednn()
# Threads of PyTorch in the processes of peers wait busily for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests of the Hugging Face Hub have servers of their own.
os.environ["HF_HUB_OFFLINE"] = "1"
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
def peft_python(transformers_python: Path) -> Path:
    """Return the Python of an environment with peft; skip the test if it is missing."""
    python = Path(os.environ.get("BERTACCUM_PEFT_PYTHON", transformers_python))
    found = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('peft'))"
    if subprocess.run([python, "-c", found], capture_output=True).returncode:
        pytest.skip(f"no peft (install it there, or set BERTACCUM_PEFT_PYTHON): {python}")
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


@pytest.fixture(autouse=True, scope="module")
def forgotten_graphs() -> Iterator[None]:
    """Release the graphs that the tests of a module traced, with which a process grows to 9 GB."""
    from bertaccum import _tf_compat

    with _tf_compat.forgetting_custom_gradients():
        yield


Make = Callable[[Path], object]


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Make], Path]:
    """Return a function that fills a folder once for both processes that run the tests.

    Its arguments are the name of the folder and the function that fills it. Tests must not write
    into the folder.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def made(name: str, make: Make) -> Path:
        folder, complete = root / name, root / f"{name}.complete"
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not complete.exists():
                shutil.rmtree(folder, ignore_errors=True)  # A failed attempt left it.
                folder.mkdir()
                make(folder)
                complete.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def trained(made_once: Callable[[str, Make], Path]) -> Path:
    """Return a folder with `reviews`, data and a small encoder, and `runs/one`, trained on them.

    The run has 40 updates and learns the task. Tests write only into a `copied` run.
    """

    def make(folder: Path) -> None:
        from small import write_small_task

        import bertaccum

        encoder = write_small_task(folder / "reviews", train=40, dev=16, test=21)
        bertaccum.train(
            data=str(folder / "reviews"),
            out=str(folder / "runs/one"),
            bert_config=str(encoder),
            init_checkpoint="none",
            max_seq_length=16,
            target_batch=8,
            micro_batch=3,
            epochs=8.0,
            learning_rate=2e-2,
            eval_every=0.5,
        )

    return made_once("trained", make)


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> RunOf:
    """Return a function that returns the run of a kind in `runs_of_tasks.KINDS`.

    Tests write only into a copy.
    """
    from runs_of_tasks import KINDS, make_run

    return functools.cache(lambda kind: make_run(tmp_path_factory.mktemp("run"), KINDS[kind]))


class Outcome(NamedTuple):
    """The exit code, stdout and stderr of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def program(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Return a function that runs the program: exit code, stdout and stderr."""
    from bertaccum.cli.program import main

    def call(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        return Outcome(int(end.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture
def data_prep_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Change to a folder with a user's own `data_prep.py`, which no process may execute."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data_prep.py").write_text("open('executed', 'w').close()\n")
    yield
    assert not (tmp_path / "executed").exists()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[HubClient]:
    """Return a stand-in for the Hugging Face Hub, and a folder for programs that use it."""
    pytest.importorskip("huggingface_hub", reason="needs bertaccum[huggingface]")
    from hub_client import HubClient
    from hub_server import Hub

    hub = Hub()
    yield HubClient(hub, tmp_path)
    hub.close()


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
