"""The results of a run, in a form that tests can compare, and runs that were killed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from bertaccum.runs.folder import RunFolder
from bertaccum.training.checkpoints import saved_states

CHANGING = {"seconds", "examples_per_second", "peak_memory_bytes"}


def result(path: Path | str | None) -> dict[str, Any]:
    """Return a run's logs, last checkpoint and best model, without timings and memory figures."""
    folder = RunFolder(Path(str(path)))
    logs = {
        log.name: [
            {key: value for key, value in json.loads(line).items() if key not in CHANGING}
            for line in log.read_text().splitlines()
        ]
        for log in (folder.metrics, folder.eval)
        if log.exists()
    }
    state = saved_states(folder.checkpoints)[-1]
    return logs | {
        "state": (state.name, (state / "state.data-00000-of-00001").read_bytes()),
        "best": {p.name: p.read_bytes() for p in folder.best.glob("*")},
        "leftovers": [p.name for p in folder.path.rglob(".*") if p.name != ".lock"],
    }


def killed_copy(run: Path | str | None, copy: Path, update: int) -> Path:
    """Copy a finished run, as if it was killed after the checkpoint of an update; return the copy.

    The run must have saved its best model later than this update.
    """
    folder = RunFolder(shutil.copytree(Path(str(run)), copy))
    later = [s for s in saved_states(folder.checkpoints) if int(s.name.split("-")[1]) > update]
    for path in (*later, folder.best):
        shutil.rmtree(path)
    folder.summary.unlink()
    return copy
