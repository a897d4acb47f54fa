"""All checks of an installation, and the record for a bug report."""

from __future__ import annotations

import dataclasses
import os
import platform
from typing import Any

from bertaccum.inspection.installation import (
    FAILED,
    Finding,
    check_cache,
    check_memory,
    check_packages,
    check_processor,
    relevant_variables,
)
from bertaccum.inspection.tensorflow_check import check_tensorflow
from bertaccum.version import __version__


def examine() -> dict[str, Any]:
    """Run all checks, and return each `Finding` as a dict in `checks`, and whether all `passed`."""
    processor, of_processor = check_processor()
    memory, of_memory = check_memory()
    cache, of_cache = check_cache()
    packages = check_packages()
    found, of_tensorflow = check_tensorflow()
    findings: list[Finding] = [*packages, processor, memory, cache, *found]
    return {
        "bertaccum": __version__,
        "system": platform.platform(),
        "python": platform.python_version(),
        "processor": of_processor | {"used": of_tensorflow.pop("instruction_sets", None)},
        "memory": of_memory,
        "cache": of_cache,
        "environment": relevant_variables(os.environ),
        "tensorflow": of_tensorflow,
        "checks": [dataclasses.asdict(finding) for finding in findings],
        "passed": all(finding.status != FAILED for finding in findings),
    }
