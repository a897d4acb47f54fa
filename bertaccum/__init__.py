"""bertaccum: fine-tune BERT at the recommended batch size on a small GPU."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bertaccum.version import __version__ as __version__

if TYPE_CHECKING:
    # `import name as name` tells type checkers that the name is public.
    from bertaccum.accumulation import AccumulatingOptimizer as AccumulatingOptimizer
    from bertaccum.accumulation import accumulate_gradients as accumulate_gradients
    from bertaccum.api import doctor as doctor
    from bertaccum.api import evaluate as evaluate
    from bertaccum.api import export as export
    from bertaccum.api import find_learning_rate as find_learning_rate
    from bertaccum.api import models as models
    from bertaccum.api import plan as plan
    from bertaccum.api import predict as predict
    from bertaccum.api import prepare as prepare
    from bertaccum.api import pretrain as pretrain
    from bertaccum.api import pretraining_events as pretraining_events
    from bertaccum.api import report as report
    from bertaccum.api import serve as serve
    from bertaccum.api import sweep as sweep
    from bertaccum.api import train as train
    from bertaccum.api import train_seeds as train_seeds
    from bertaccum.api import training_events as training_events
    from bertaccum.cli.display.notebook_view import live as live
    from bertaccum.errors import BertAccumError as BertAccumError
    from bertaccum.errors import ConfigError as ConfigError
    from bertaccum.errors import InputError as InputError
    from bertaccum.errors import RunError as RunError
    from bertaccum.inference.results import EvalResult as EvalResult
    from bertaccum.inference.results import ExportResult as ExportResult
    from bertaccum.inference.results import Prediction as Prediction
    from bertaccum.planning.plan import BatchPlan as BatchPlan
    from bertaccum.planning.plan_result import PlanResult as PlanResult
    from bertaccum.training.events import Evaluated as Evaluated
    from bertaccum.training.events import Finished as Finished
    from bertaccum.training.events import OutOfMemory as OutOfMemory
    from bertaccum.training.events import RunResult as RunResult
    from bertaccum.training.events import Started as Started
    from bertaccum.training.events import Stopped as Stopped
    from bertaccum.training.events import Updated as Updated
    from bertaccum.training.seed_sweep import SeedsResult as SeedsResult
    from data_prep.preparation import PrepareResult as PrepareResult

_HOMES = {
    "bertaccum.accumulation": ("AccumulatingOptimizer", "accumulate_gradients"),
    "bertaccum.api": (
        *("doctor", "evaluate", "export", "find_learning_rate", "models", "plan", "predict"),
        *("prepare", "pretrain", "pretraining_events", "report", "serve", "sweep", "train"),
        *("train_seeds", "training_events"),
    ),
    "bertaccum.cli.display.notebook_view": ("live",),
    "bertaccum.errors": ("BertAccumError", "ConfigError", "InputError", "RunError"),
    "bertaccum.inference.results": ("EvalResult", "ExportResult", "Prediction"),
    "bertaccum.planning.plan": ("BatchPlan",),
    "bertaccum.planning.plan_result": ("PlanResult",),
    "bertaccum.training.events": (
        *("Evaluated", "Finished", "OutOfMemory", "RunResult", "Started", "Stopped", "Updated"),
    ),
    "bertaccum.training.seed_sweep": ("SeedsResult",),
    "data_prep.preparation": ("PrepareResult",),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}
__all__ = sorted(["__version__", *_MODULES])


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import bertaccum` stays fast."""
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
