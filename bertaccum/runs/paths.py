"""Paths of the files in a run folder.

This module imports only the standard library.
"""

from __future__ import annotations

from pathlib import Path

from bertaccum.errors import InputError
from bertaccum.system.atomic import complete_folder

RUNS = Path("runs")
LATEST = "latest"
# A file in `checkpoints/` until the first checkpoint is saved: such a run may start over.
NOT_SAVED_YET = "not-saved-yet"


def target_of(run: Path) -> Path:
    """Return the folder that a link such as `runs/latest` points to; other paths are unchanged."""
    return run.parent / run.readlink() if run.is_symlink() else run


class RunPaths:
    """The paths of the files in one run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.plan = path / "plan.json"
        self.metrics = path / "metrics.jsonl"
        self.eval = path / "eval.jsonl"
        self.summary = path / "summary.json"
        self.checkpoints = path / "checkpoints"
        self.inputs = path / "inputs.json"
        self.best = path / "best"
        self.tensorboard = path / "tensorboard"
        self.lock = path / ".lock"
        self.card = path / "model-card.md"
        self.page = path / "report.html"

    def tracked(self, tracker: str) -> Path:
        """Return the file with the identity that the run has in a tracker."""
        return self.path / f"{tracker}.json"

    def best_aside(self, update: int) -> Path:
        """Return the folder of a best model, saved after `update`, that a resumed run set aside."""
        return self.path / f"best-update-{update}"

    def best_checkpoint(self) -> Path:
        """Return the folder of the best checkpoint.

        Raises:
          InputError: The run has no best checkpoint.
        """
        # Resolve links now: `runs/latest` points to another run as soon as that run starts.
        best = complete_folder(self.path.resolve() / self.best.name)
        if not best.is_dir():
            raise InputError(
                "this run has no best checkpoint yet",
                "wait for its first evaluation",
                path=self.path,
            )
        return best
