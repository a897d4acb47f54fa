"""Checks of the machine, of Python and of the packages, without importing the packages."""

from __future__ import annotations

import platform
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertaccum.errors import reason
from bertaccum.system.machine import available_bytes, machine_bytes, usable_cores
from bertaccum.system.sizes import format_size

if TYPE_CHECKING:
    from packaging.requirements import Requirement


# BERT-Base has 110 million weights: 1.6 GiB with moments and accumulators, and 1.2 GiB for a
# checkpoint.
_SCARCE_BYTES = 2 * 2**30
_CPUINFO = Path("/proc/cpuinfo")
_NAMES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "XLA_FLAGS", "LD_LIBRARY_PATH")
_PREFIXES = ("TF_", "BERTACCUM_")
# Terraform's variables also start with TF_, and may contain secrets.
_OTHERS = ("TF_VAR_", "TF_CLI_", "TF_TOKEN_")
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|KEY|CREDENTIAL", re.IGNORECASE)


def check_processor() -> tuple[Finding, dict[str, Any]]:
    """Return the processor and its number of usable cores; TensorFlow needs AVX on x86."""
    text = _CPUINFO.read_text(errors="replace") if _CPUINFO.exists() else ""
    name = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.*)$", text, re.MULTILINE)
    known = {
        "name": name[1] if name else platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "cores": usable_cores(),
    }
    detail = f"{known['name']}, {known['cores']} usable cores"
    if flags and "avx" not in flags[1].split():
        remedy = "TensorFlow's packages need AVX: use another machine or build TensorFlow"
        return Finding("processor", FAILED, f"{detail}, without AVX", remedy), known
    return Finding("processor", OK, detail), known


def check_memory() -> tuple[Finding, dict[str, Any]]:
    """Return the memory of the machine and how much of it is available, in bytes."""
    try:
        total, free = machine_bytes(), available_bytes()
    except ImportError:  # psutil is missing, which another check reports.
        return Finding("memory", WARNING, "unknown without psutil", "install psutil"), {}
    known = {"total_bytes": total, "available_bytes": free}
    detail = f"{format_size(free)} of {format_size(total)} available"
    if free < _SCARCE_BYTES:
        remedy = "close other programs, or train a small model such as bert-tiny"
        return Finding("memory", WARNING, detail, remedy), known
    return Finding("memory", OK, detail), known


def check_cache() -> tuple[Finding, dict[str, Any]]:
    """Return whether files can be written to the cache folder, and the free space on its disk."""
    try:
        from bertaccum.system.cache import cache_folder
    except ImportError:  # platformdirs is missing, which another check reports.
        unknown = "unknown without platformdirs"
        return Finding("cache folder", WARNING, unknown, "install platformdirs"), {}
    folder = cache_folder().absolute()
    known: dict[str, Any] = {"folder": str(folder), "free_bytes": None}
    remedy = "fix its permissions, or set BERTACCUM_CACHE to another folder"
    try:
        # The check must leave nothing behind, so it does not create the cache folder.
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryFile(dir=existing):
            known["free_bytes"] = shutil.disk_usage(existing).free
    except OSError as error:
        detail = f"{folder} cannot be written ({reason(error)}), so nothing new is cached"
        return Finding("cache folder", WARNING, detail, remedy), known
    detail = f"{folder}, {format_size(known['free_bytes'])} free"
    if known["free_bytes"] < _SCARCE_BYTES:
        remedy = "free disk space, or set BERTACCUM_CACHE to a folder on another disk"
        return Finding("cache folder", WARNING, detail, remedy), known
    return Finding("cache folder", OK, detail), known


def relevant_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that affect training, in alphabetical order.

    The values of those whose names suggest a secret, and user names, passwords and queries in
    addresses, are replaced by `…`.
    """
    named = (n for n in environment if n in _NAMES or n.startswith(_PREFIXES))
    names = sorted(n for n in named if not n.startswith(_OTHERS))
    return {n: "…" if _SECRET.search(n) else _without_secrets(environment[n]) for n in names}


def _without_secrets(value: str) -> str:
    value = re.sub(r"(://)[^/@\s]*@", r"\1…@", value)
    return re.sub(r"(://[^?\s]*)\?\S*", r"\1?…", value)


# Packages that are always listed. The others are listed if something is wrong with them.
_MAIN = ("tensorflow", "tf_keras", "tensorflow-text", "tf-models-official", "numpy", "protobuf")
_INSTALL = "install bertaccum with pip (see docs/how-to/install.md)"


def installed(package: str) -> str | None:
    """Return the version of a package according to its metadata; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_packages() -> list[Finding]:
    """Compare the versions of Python and of all packages with those that bertaccum requires."""
    try:
        from packaging.requirements import Requirement
        from packaging.specifiers import SpecifierSet
    except ImportError:
        return [_missing("packaging", "packaging")]
    try:
        known = metadata.metadata("bertaccum")
    except metadata.PackageNotFoundError:
        detail = "the source is used without installing it, so the versions cannot be checked"
        return [Finding("bertaccum", WARNING, detail, _INSTALL), *_unchecked()]
    every = [Requirement(text) for text in known.get_all("Requires-Dist") or []]
    required = [r for r in every if r.marker is None or r.marker.evaluate({"extra": ""})]
    findings = [_check_requirement(requirement) for requirement in required]
    shown = [f for f in findings if f.status != OK or f.subject in _MAIN]
    others = len(findings) - len(shown)
    return [
        _check_python(SpecifierSet(known["Requires-Python"] or "")),
        *shown,
        *(f for f in _unchecked() if f.subject not in {r.name for r in required}),
        Finding("other packages", OK, f"{others} installed in a supported version"),
    ]


def _check_python(supported: object) -> Finding:
    version = platform.python_version()
    # SpecifierSet is not imported at the top, so its method is used through `in`.
    if version in supported:  # type: ignore[operator]
        return Finding("Python", OK, f"{version} ({platform.python_implementation()})")
    remedy = f"use a Python version in {supported}"
    return Finding("Python", FAILED, f"{version} is not supported", remedy)


def _check_requirement(requirement: Requirement) -> Finding:
    name, supported = requirement.name, requirement.specifier
    version = installed(name)
    if version is None:
        return _missing(name, str(requirement).split(";")[0])
    if supported.contains(version, prereleases=True):
        return Finding(name, OK, version)
    remedy = f"run `pip install '{name}{supported}'`"
    return Finding(name, FAILED, f"{version} is not supported", remedy)


def _missing(package: str, requirement: str) -> Finding:
    return Finding(package, FAILED, "is not installed", f"run `pip install '{requirement}'`")


def _unchecked() -> list[Finding]:
    """Return the versions of the main packages, for which no range is known."""
    versions = {package: installed(package) for package in _MAIN}
    return [Finding(package, OK, version) for package, version in versions.items() if version]


OK, WARNING, FAILED = "ok", "warning", "failed"


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    subject: str  # Subject of the check, such as a package.
    status: str  # One of `OK`, `WARNING` and `FAILED`.
    detail: str  # Result of the check.
    remedy: str = ""  # Advice; empty if the status is `OK`.
