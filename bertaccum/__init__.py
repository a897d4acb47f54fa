"""bertaccum: fine-tune BERT at the recommended batch size on a small GPU."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bertaccum.version import __version__

if TYPE_CHECKING:
    from bertaccum.accumulation import AccumulatingOptimizer, accumulate_gradients
    from bertaccum.api import (
        doctor,
        evaluate,
        export,
        find_learning_rate,
        models,
        plan,
        predict,
        prepare,
        report,
        serve,
        sweep,
        train,
        train_seeds,
        training_events,
    )
    from bertaccum.errors import BertAccumError, ConfigError, InputError, RunError
    from bertaccum.inference.results import EvalResult, ExportResult, Prediction
    from bertaccum.planning.batch_plan import BatchPlan, PlanResult
    from bertaccum.training.events import (
        Evaluated,
        Finished,
        OutOfMemory,
        Started,
        Stopped,
        Updated,
    )
    from bertaccum.training.run_result import RunResult, SeedsResult
    from data_prep.preparation import PrepareResult

_HOMES = {
    "bertaccum.accumulation": ("AccumulatingOptimizer", "accumulate_gradients"),
    "bertaccum.api": (
        *("doctor", "evaluate", "export", "find_learning_rate", "models", "plan", "predict"),
        *("prepare", "report", "serve", "sweep", "train", "train_seeds", "training_events"),
    ),
    "bertaccum.errors": ("BertAccumError", "ConfigError", "InputError", "RunError"),
    "bertaccum.inference.results": ("EvalResult", "ExportResult", "Prediction"),
    "bertaccum.planning.batch_plan": ("BatchPlan", "PlanResult"),
    "bertaccum.training.events": (
        *("Evaluated", "Finished", "OutOfMemory", "Started", "Stopped", "Updated"),
    ),
    "bertaccum.training.run_result": ("RunResult", "SeedsResult"),
    "data_prep.preparation": ("PrepareResult",),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}
__all__ = [
    "AccumulatingOptimizer",
    "BatchPlan",
    "BertAccumError",
    "ConfigError",
    "EvalResult",
    "Evaluated",
    "ExportResult",
    "Finished",
    "InputError",
    "OutOfMemory",
    "PlanResult",
    "Prediction",
    "PrepareResult",
    "RunError",
    "RunResult",
    "SeedsResult",
    "Started",
    "Stopped",
    "Updated",
    "__version__",
    "accumulate_gradients",
    "doctor",
    "evaluate",
    "export",
    "find_learning_rate",
    "models",
    "plan",
    "predict",
    "prepare",
    "report",
    "serve",
    "sweep",
    "train",
    "train_seeds",
    "training_events",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import bertaccum` stays fast."""
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
