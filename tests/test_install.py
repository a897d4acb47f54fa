"""The built packages: their contents, and their installation in empty environments.

`make test-install` runs these tests. They use the package index that pip is configured for, and
install TensorFlow once: with the newest supported Python, where the program also trains. For the
oldest, they resolve the requirements, compile all modules and start the program without
TensorFlow. BERTACCUM_INSTALL_WITH names other versions to train with (`3.10,3.12`).
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from dockerfile import copied, instructions

from bertaccum.version import __version__

pytestmark = pytest.mark.install

ROOT = Path(__file__).resolve().parents[1]
OLDEST, NEWEST = "3.10", "3.13"
TRAINED_WITH = os.environ.get("BERTACCUM_INSTALL_WITH", NEWEST).split(",")
CONSTRAINTS = ["--constraint", str(ROOT / "constraints.txt")]


def run(*command: object, cwd: Path | None = None, **variables: str) -> str:
    """Run a command without this environment's packages, and return its standard output."""
    outer = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "VIRTUAL_ENV")}
    words = [str(word) for word in command]
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=cwd, env=outer | variables, errors="replace"
    )
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@functools.cache
def interpreter(version: str) -> Path:
    """Return an interpreter of a Python version, or skip the test."""
    found = [shutil.which(f"python{version}")]
    found += sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")))
    for path in filter(None, found):
        code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
        # pyenv's shims exist for versions that are not active, and then fail.
        done = subprocess.run([path, "-c", code], capture_output=True, text=True)
        if done.stdout.strip() == version:
            return Path(path)
    pytest.skip(f"there is no python{version} on PATH or in ~/.pyenv/versions")


def environment(folder: Path, version: str) -> Path:
    """Create a virtual environment with nothing but pip, and return its interpreter."""
    run(interpreter(version), "-m", "venv", "--without-pip", folder)
    python = folder / "bin/python"
    # Python's bundled pip may be old: before 23.3, it downloads all packages even for a dry run.
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "pip>=23.3")
    return python


def pip(python: Path, *arguments: object) -> str:
    return run(python, "-m", "pip", *arguments)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build the source distribution from the source, and the wheel from the source distribution."""
    source, out = (tmp_path_factory.mktemp(name) for name in ("source", "dist"))
    # A copy: setuptools would put the remains of earlier builds into the wheel.
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in run(*command, cwd=ROOT).splitlines():
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--outdir", out, source)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a temporary folder that is removed, because an environment takes 3 GB."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def test_wheel_contains_the_packages_and_nothing_else(packages: tuple[Path, Path]) -> None:
    _, wheel = packages
    assert wheel.name == f"bertaccum-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = f"bertaccum-{__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"bertaccum", "data_prep", info}
    modules = {
        str(path.relative_to(ROOT))
        for package in ("bertaccum", "data_prep")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if not name.startswith(info)} == modules
    assert {"bertaccum/py.typed", "bertaccum/bert/presets.yaml"} <= names
    assert "bertaccum/options/other_names.yaml" in names
    assert {"data_prep/sources/glue_tasks.yaml", "data_prep/sources/sample_words.yaml"} <= names
    assert "bertaccum/reporting/templates/report.html.j2" in names
    assert f"{info}/licenses/LICENSE" in names


def test_source_distribution_contains_what_the_build_needs(packages: tuple[Path, Path]) -> None:
    sdist, wheel = packages
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"} <= names
    with zipfile.ZipFile(wheel) as built:
        packed = {name for name in built.namelist() if ".dist-info/" not in name}
    assert packed <= names
    assert not {"benchmarks", "docs", "deploy", "tests"} & {name.split("/")[0] for name in names}


def test_oldest_python_resolves_the_requirements_and_starts(
    packages: tuple[Path, Path], folder: Path
) -> None:
    _, wheel = packages
    python = environment(folder / "empty", OLDEST)
    pip(python, "install", "--quiet", "--dry-run", *CONSTRAINTS, wheel)
    pip(python, "install", "--quiet", "--no-deps", wheel, "click")
    program = python.with_name("bertaccum")
    assert f"bertaccum {__version__} (tensorflow not installed" in run(program, "--version")
    assert "First steps" in run(program, "--help", cwd=folder)
    installed = python.parent.parent / "lib"
    run(python, "-W", "error", "-m", "compileall", "-q", "-f", installed)


@pytest.mark.parametrize("version", TRAINED_WITH)
def test_wheel_trains_in_an_empty_environment(
    packages: tuple[Path, Path], folder: Path, version: str
) -> None:
    _, wheel = packages
    python = environment(folder / "empty", version)
    # Only what the program imports is compiled; compiling everything takes longer than training.
    pip(python, "install", "--quiet", "--no-compile", *CONSTRAINTS, wheel)
    pip(python, "check")
    program = python.with_name("bertaccum")
    cache = {"BERTACCUM_CACHE": str(folder / "cache")}
    shown = run(program, "--version", cwd=folder)
    assert shown.startswith(f"bertaccum {__version__} (tensorflow 2.")
    assert f"Python {version}." in shown
    run(program, "prepare", "--source", "sample", cwd=folder, **cache)
    options = ["--data", "data/sample", "--model", "bert-tiny", "--init-checkpoint", "none"]
    options += ["--max-seq-length", "32", "--micro-batch", "16", "--max-updates", "1"]
    run(program, "train", *options, cwd=folder, **cache)
    assert "accuracy" in run(program, "eval", cwd=folder, **cache)
    _check_container(python, folder / "image")


def _check_container(python: Path, image: Path) -> None:
    """Copy the files that the Dockerfile copies, and run its pip commands in an environment.

    The environment already has the requirements, so this takes seconds. It shows that the commands
    work and that the copied files are enough.
    """
    image.mkdir()
    found = instructions((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    path = f"{python.parent}:{os.environ['PATH']}"
    ran = 0
    for instruction in found:
        if instruction.name == "COPY":
            ((names, target),) = copied([instruction])
            for name in names:
                _copy(ROOT / name, image / target)
        elif instruction.name == "RUN" and "pip install" in instruction.value:
            run("/bin/sh", "-c", instruction.value, cwd=image, PATH=path, EXTRAS="huggingface")
            ran += 1
    assert ran == 2
    assert "(tensorflow 2." in run(python.with_name("bertaccum"), "--version", cwd=image.parent)
    assert "safetensors" in pip(python, "list")  # The extra was installed.
    run(
        python,
        "-c",
        "import bertaccum.reporting.rendering, data_prep.sources.sample",
        cwd=image.parent,
    )


def _copy(source: Path, target: Path) -> None:
    """Copy as COPY does: the contents of a folder, or a file into a folder."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target / source.name)
