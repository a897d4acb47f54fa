"""One process of trainings: jobs as JSON on stdin, their results as JSON lines in a file.

    python -m exactness_cases.run with_bertaccum float64 RESULTS <<< '[["optimizer", 0, "local"]]'

A job is a training's name, a case's number and a placement, the same for all jobs, which is set
up before the framework starts. What a training raises is its result.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exactness_cases.cases import Case, NotSupportedError, all_cases


def result(train: Callable[[str, Case], Any], name: str, case: Case) -> dict[str, Any]:
    """The trained weights, or what was raised instead."""
    try:
        return {"weights": train(name, case)}
    except NotSupportedError as error:
        return {"not_supported": str(error)}
    except Exception as error:
        return {"error": type(error).__name__, "message": gist(error)}


def gist(error: Exception) -> str:
    """One line: the first, or after AutoGraph's account of the user's code the last."""
    lines = str(error).strip().splitlines() or [""]
    return lines[-1 if lines[0] == "in user code:" else 0].strip()


def main(framework: str, dtype: str, results: Path) -> None:
    jobs = json.load(sys.stdin)
    cases = all_cases()
    module = importlib.import_module(f"exactness_cases.{framework}")
    train = module.start(jobs[0][2], dtype)
    with results.open("a") as file:
        for name, number, _ in jobs:
            file.write(json.dumps(result(train, name, cases[number])) + "\n")
            file.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
