"""Where a run keeps what. Standard library only."""

from __future__ import annotations

from pathlib import Path

RUNS = Path("runs")
LATEST = "latest"


class RunPaths:
    """The files of one run's folder."""

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
