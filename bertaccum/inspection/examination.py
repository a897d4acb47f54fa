"""All checks of an installation, those of TensorFlow in a separate process, and their record."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from bertaccum.inspection import installation
from bertaccum.inspection.installation import FAILED, OK, WARNING, Finding
from bertaccum.system.child_process import module_command
from bertaccum.system.sizes import format_size
from bertaccum.version import __version__

# The stages of `probe`, each with the subject of its check.
_SUBJECTS = {
    "tensorflow": "import of tensorflow",
    "tf_keras": "import of tf_keras",
    "tensorflow_text": "import of tensorflow-text",
    "official.nlp.modeling": "import of tf-models-official",
    "devices": "devices",
    "rehearsal": "rehearsal",
}
_REPORT = "report this with the output of `bertaccum doctor --json`"
_MAX_SECONDS = 600
# Largest difference between weights, and relative difference between gradient norms, that rounding
# explains after two updates.
_TOLERANCE, _NORM_TOLERANCE = 1e-6, 1e-5
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def examine() -> dict[str, Any]:
    """Run all checks, and return each `Finding` as a dict in `checks`, and whether all `passed`."""
    processor, of_processor = installation.check_processor()
    memory, of_memory = installation.check_memory()
    cache, of_cache = installation.check_cache()
    packages = installation.check_packages()
    found, of_tensorflow = check_tensorflow()
    findings: list[Finding] = [*packages, processor, memory, cache, *found]
    return {
        "bertaccum": __version__,
        "system": platform.platform(),
        "python": platform.python_version(),
        "processor": of_processor | {"used": of_tensorflow.pop("instruction_sets", None)},
        "memory": of_memory,
        "cache": of_cache,
        "environment": installation.relevant_variables(os.environ),
        "tensorflow": of_tensorflow,
        "checks": [dataclasses.asdict(finding) for finding in findings],
        "passed": all(finding.status != FAILED for finding in findings),
    }


def check_tensorflow() -> tuple[list[Finding], dict[str, Any]]:
    """Import TensorFlow, list the devices and rehearse training, in a process of its own.

    The record has `build`, `gpus`, `instruction_sets` and `rehearsal`, as far as they are known.
    """
    stages, log, end = _run_probe()
    known: dict[str, Any] = {}
    if match := re.search(r"enable the following instructions: (.*?),? in other operations", log):
        known["instruction_sets"] = match[1].split()
    findings = [_finding(stage, stages[stage]) for stage in _SUBJECTS if stage in stages]
    if "devices" in stages:
        known |= {name: stages["devices"].get(name) for name in ("build", "gpus")}
    if "difference" in stages.get("rehearsal", {}):
        known["rehearsal"] = stages["rehearsal"]
    if len(findings) < len(_SUBJECTS):
        skipped = list(_SUBJECTS)[len(findings) :]
        if all(finding.status != FAILED for finding in findings):
            findings.append(Finding(_SUBJECTS[skipped.pop(0)], FAILED, end, _remedy(end)))
        remedy = "fix the failed check first"
        findings += [Finding(_SUBJECTS[s], WARNING, "not checked", remedy) for s in skipped]
    return findings, known


def _run_probe() -> tuple[dict[str, dict[str, Any]], str, str]:
    """Run `probe`, and return its records by stage, its log, and how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data").mkdir()
        environment = os.environ | {
            "BERTACCUM_CACHE": f"{folder}/cache",
            "TF_CPP_MIN_LOG_LEVEL": "0",  # At this level, the log names the instruction sets.
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # Other programs may be using the GPU.
            "TF_USE_LEGACY_KERAS": "1",
        }
        command = module_command("bertaccum.inspection.probe", f"{folder}/data")
        with Path(folder, "out").open("w+") as out, Path(folder, "log").open("w+b") as log:
            try:
                done = subprocess.run(
                    command, stdout=out, stderr=log, env=environment, timeout=_MAX_SECONDS
                )
                end = _ending(done.returncode)
            except subprocess.TimeoutExpired:
                end = f"did not finish within {_MAX_SECONDS} seconds"
            lines = Path(folder, "out").read_text().splitlines()
            text = Path(folder, "log").read_text(errors="replace")
    return dict(map(json.loads, lines)), text, end


def _ending(code: int) -> str:
    if code >= 0:
        return f"the process ended with exit code {code}"
    return f"the process was ended by {signal.Signals(-code).name}"


def _remedy(end: str) -> str:
    if "SIGILL" in end:
        return "this TensorFlow needs instructions that the processor lacks: use another machine"
    if "SIGKILL" in end:
        return "memory may have run out: close other programs"
    return "install bertaccum in a new virtual environment, and report this if it fails again"


def _finding(stage: str, record: dict[str, Any]) -> Finding:
    """Return the finding of a stage from the record of `probe`."""
    subject = _SUBJECTS[stage]
    if "error" in record:
        remedy = "fix the failed packages above, or install bertaccum in a new virtual environment"
        remedy = _REPORT if stage in ("devices", "rehearsal") else remedy
        return Finding(subject, FAILED, record["error"], remedy)
    if stage == "devices":
        return _found_devices(record)
    if stage == "rehearsal":
        return _rehearsed(record)
    return Finding(subject, OK, record["version"] or "works")


def _found_devices(record: dict[str, Any]) -> Finding:
    if record["gpus"]:
        lines = (
            f"{gpu['name']} (compute capability {gpu['compute_capability']},"
            f" {format_size(gpu['usable_bytes'])} usable)"
            for gpu in record["gpus"]
        )
        return Finding("devices", OK, "; ".join(lines))
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    driver = _NVIDIA_DRIVER.exists() or shutil.which("nvidia-smi") is not None
    if driver and hidden is None:
        detail = "an NVIDIA driver, but no GPU in TensorFlow; CPU only"
        remedy = "install the CUDA libraries with bertaccum's extra `gpu`"
        return Finding("devices", WARNING, detail, remedy)
    why = f" (CUDA_VISIBLE_DEVICES is {hidden!r})" if hidden is not None else ""
    return Finding("devices", OK, f"CPU only{why}")


def _rehearsed(record: dict[str, Any]) -> Finding:
    difference, change = record["difference"], record["change"]
    norms = record["norm_difference"]
    said = f"updates of 1 x 4 and 2 x 2 examples: the weights differ by at most {difference:.1e}"
    # Written so that NaN fails.
    if difference <= _TOLERANCE and norms <= _NORM_TOLERANCE and change > _TOLERANCE:
        return Finding("rehearsal", OK, said)
    return Finding("rehearsal", FAILED, f"{said} of {change:.1e}, norms by {norms:.1e}", _REPORT)
