"""All checks of an installation, and the record for a bug report."""

from __future__ import annotations

import dataclasses
import os
import platform
from typing import Any

from bertaccum.inspection import installation
from bertaccum.inspection.tensorflow_check import check_tensorflow
from bertaccum.version import __version__


def examine() -> dict[str, Any]:
    """Run all checks, and return each `Finding` as a dict in `checks`, and whether all `passed`."""
    processor, of_processor = installation.check_processor()
    memory, of_memory = installation.check_memory()
    cache, of_cache = installation.check_cache()
    packages = installation.check_packages()
    found, of_tensorflow = check_tensorflow()
    findings: list[installation.Finding] = [*packages, processor, memory, cache, *found]
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
        "passed": all(finding.status != installation.FAILED for finding in findings),
    }
