"""Runs trainings in one process: reads jobs as JSON from stdin, and writes JSON Lines to a file.

    python -m exactness_cases.run with_bertaccum float64 RESULTS <<< '[["optimizer", 0, "local"]]'

A job is the name of a training, the number of a case and a placement. All jobs have the same
placement, which is set up before the first training. An exception becomes the training's result.
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
    """Return the trained weights, or a description of the exception."""
    try:
        return {"weights": train(name, case)}
    except NotSupportedError as error:
        return {"not_supported": str(error), "message": gist(error.__cause__ or error)}
    except Exception as error:
        return {"error": type(error).__name__, "message": gist(error)}


def gist(error: BaseException) -> str:
    """Return the first line of an error, or the last if AutoGraph put user code before it."""
    lines = str(error).strip().splitlines() or [""]
    return lines[-1 if lines[0] == "in user code:" else 0].strip()


def main(framework: str, dtype: str, results: Path) -> None:
    jobs = json.load(sys.stdin)
    name, _, backend = framework.partition(".")
    cases = all_cases(keras_3=bool(backend))
    module = importlib.import_module(f"exactness_cases.{name}")
    train = module.start(jobs[0][2], dtype)
    with results.open("a") as file:
        for name, number, _ in jobs:
            file.write(json.dumps(result(train, name, cases[number])) + "\n")
            file.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
