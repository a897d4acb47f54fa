"""Checks of the versions of Python and of the packages, without importing the packages."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import TYPE_CHECKING

from bertaccum.inspection.finding import FAILED, OK, WARNING, Finding

if TYPE_CHECKING:
    from packaging.requirements import Requirement

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
    version = installed(requirement.name)
    if version is None:
        return _missing(requirement.name, str(requirement).split(";")[0])
    if requirement.specifier.contains(version, prereleases=True):
        return Finding(requirement.name, OK, version)
    return Finding(
        requirement.name,
        FAILED,
        f"{version} is not supported",
        f"run `pip install '{requirement.name}{requirement.specifier}'`",
    )


def _missing(package: str, requirement: str) -> Finding:
    return Finding(package, FAILED, "is not installed", f"run `pip install '{requirement}'`")


def _unchecked() -> list[Finding]:
    """Return the versions of the main packages, for which no range is known."""
    versions = {package: installed(package) for package in _MAIN}
    return [Finding(package, OK, version) for package, version in versions.items() if version]
