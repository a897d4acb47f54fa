"""`bertaccum doctor`: it reports each problem of an installation, and never fails itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from bertaccum.inspection import examination, installation
from bertaccum.inspection.installation import FAILED, OK, WARNING

ROOT = Path(__file__).resolve().parents[2]


def doctor(stubs: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the program with a folder of stubs that come before the installed packages."""
    path = os.pathsep.join([str(stubs), str(ROOT)])
    stubs.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "bertaccum", "doctor", *options],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path} | variables,
    )


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    assert "Traceback" not in done.stdout + done.stderr
    return {check["subject"]: check for check in json.loads(done.stdout)["checks"]}


def test_broken_tensorflow_is_a_failed_check(tmp_path: Path) -> None:
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow/__init__.py").write_text("raise ImportError('libabsent.so is missing')")
    done = doctor(tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("failed")]
    assert line.split()[1:4] == ["import", "of", "tensorflow"]
    assert line.endswith("ImportError: libabsent.so is missing")
    assert "not checked" in done.stdout.split(line)[1]
    assert done.stderr.splitlines()[-1].startswith("error: 1 check failed; ")


@pytest.mark.usefixtures("data_prep_of_the_user")
def test_process_of_the_checks_imports_what_this_one_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "added").mkdir()
    code = "import data_prep.tables.manifest\nraise ImportError('this one')"
    (tmp_path / "added/tensorflow.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "added")
    stages, _, _ = examination._run_probe()
    assert stages == {"tensorflow": {"error": "ImportError: this one"}}


def test_crash_of_tensorflow_is_a_failed_check(tmp_path: Path) -> None:
    crash = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)"
    (tmp_path / "tensorflow.py").write_text(crash)
    found = checks(doctor(tmp_path, "--json"))["import of tensorflow"]
    assert (found["status"], found["detail"]) == (FAILED, "the process was ended by SIGILL")
    assert "processor" in found["remedy"]


def test_unsupported_version_and_missing_packages_are_failed_checks(tmp_path: Path) -> None:
    (tmp_path / "tensorflow-2.19.0.dist-info").mkdir()
    text = "Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.19.0\n"
    (tmp_path / "tensorflow-2.19.0.dist-info/METADATA").write_text(text)
    noise = "import os\nprint('noise', flush=True)\nos.write(1, b'noise')\n"
    (tmp_path / "tensorflow.py").write_text(f"{noise}__version__ = '2.19.0'")
    for module in ("psutil", "platformdirs", "rich"):
        (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError('No {module}')")
    found = checks(doctor(tmp_path, "--json"))
    assert found["tensorflow"]["status"] == FAILED
    assert found["tensorflow"]["detail"] == "2.19.0 is not supported"
    assert "2.20" in found["tensorflow"]["remedy"]
    assert (found["memory"]["status"], found["cache folder"]["status"]) == (WARNING, WARNING)


def test_missing_package_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def without_rich(name: str) -> str:
        if name in ("rich", "protobuf", "safetensors"):
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without_rich)
    found = {finding.subject: finding for finding in installation.check_packages()}
    assert (found["rich"].status, found["rich"].detail) == (FAILED, "is not installed")
    assert found["rich"].remedy == "run `pip install 'rich>=13'`"
    assert "protobuf" not in found
    assert "safetensors" not in found  # Extras are not required.
    assert [f.subject for f in found.values() if f.status == FAILED] == ["rich"]


def test_unsupported_python_is_a_failed_check() -> None:
    found = installation._check_python(SpecifierSet(">=3.99"))
    assert (found.status, found.remedy) == (FAILED, "use a Python version in >=3.99")
    assert installation._check_python(SpecifierSet(">=3.10")).status == OK


def test_source_that_is_not_installed_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "metadata", absent)
    found = installation.check_packages()
    assert (found[0].subject, found[0].status) == ("bertaccum", WARNING)
    assert "tensorflow" in {finding.subject for finding in found}


def test_scarce_memory_and_disk_space_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    for scarce, status in ((2**30, WARNING), (2**40, OK)):
        usage = SimpleNamespace(free=scarce)
        monkeypatch.setattr(installation, "available_bytes", lambda free=scarce: free)
        monkeypatch.setattr(installation.shutil, "disk_usage", lambda path, usage=usage: usage)
        assert [installation.check_memory()[0].status, installation.check_cache()[0].status] == [
            status
        ] * 2


def test_unwritable_cache_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "file/cache"))
    found, _ = installation.check_cache()
    assert found.status == WARNING and "so nothing new is cached" in found.detail
    monkeypatch.setenv("BERTACCUM_CACHE", str(tmp_path / "new/cache"))
    found, record = installation.check_cache()
    assert found.status in (OK, WARNING)  # The disk may be nearly full.
    assert record["free_bytes"] > 0
    assert not (tmp_path / "new").exists()


def test_environment_contains_no_secrets() -> None:
    environment = {
        "BERTACCUM_CHECKPOINT_URL": "https://me:hidden@host/models?signature=hidden",
        "BERTACCUM_TOKEN": "hidden",
        "TF_VAR_database": "hidden",
        "OTHER_PASSWORD": "hidden",
        "TF_CONFIG": '{"cluster": {}}',
        "CUDA_VISIBLE_DEVICES": "0",
    }
    shown = installation.relevant_variables(environment)
    assert list(shown) == [
        "BERTACCUM_CHECKPOINT_URL",
        "BERTACCUM_TOKEN",
        "CUDA_VISIBLE_DEVICES",
        "TF_CONFIG",
    ]
    assert "hidden" not in str(shown)
    assert shown["BERTACCUM_CHECKPOINT_URL"] == "https://…@host/models?…"
    assert (shown["TF_CONFIG"], shown["CUDA_VISIBLE_DEVICES"]) == ('{"cluster": {}}', "0")


GPU = {"name": "Small Card", "compute_capability": "6.1", "usable_bytes": 3 * 2**30}


@pytest.mark.parametrize(
    ("gpus", "driver", "hidden", "status", "part"),
    [
        ([GPU], True, None, OK, "Small Card (compute capability 6.1, 3,072 MiB usable)"),
        ([], True, None, WARNING, "an NVIDIA driver, but no GPU"),
        ([], True, "-1", OK, "CPU only (CUDA_VISIBLE_DEVICES is '-1')"),
        ([], False, None, OK, "CPU only"),
    ],
)
def test_gpu_that_tensorflow_does_not_see_is_a_warning(
    gpus: list[Any],
    driver: bool,
    hidden: str | None,
    status: str,
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(examination, "_NVIDIA_DRIVER", tmp_path if driver else tmp_path / "none")
    monkeypatch.setattr(examination.shutil, "which", lambda name: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    found = examination._found_devices({"gpus": gpus})
    assert (found.status, part in found.detail) == (status, True)


@pytest.mark.slow
def test_working_installation_passes_and_no_file_is_left(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    variables = {"TMPDIR": str(temporary), "BERTACCUM_CACHE": str(tmp_path / "cache")}
    # A worker of a distributed run would wait for the other, which does not exist.
    variables["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    )
    done = doctor(tmp_path / "stubs", "--json", **variables)
    record = json.loads(done.stdout)
    assert (done.returncode, record["passed"]) == (0, True), record["checks"]
    assert record["tensorflow"]["rehearsal"]["difference"] <= 1e-6
    assert record["tensorflow"]["build"].keys() == {"cuda_version", "cudnn_version"}
    assert record["environment"]["TF_CONFIG"] == variables["TF_CONFIG"]
    assert not list(temporary.iterdir())
    assert not (tmp_path / "cache").exists()
