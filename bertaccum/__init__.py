"""bertaccum: fine-tune BERT at the recommended batch size on a small GPU."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertaccum.accumulation import AccumulatingOptimizer, accumulate_gradients
    from bertaccum.api import evaluate, export, plan, predict, prepare, report, train

from bertaccum.version import __version__

__all__ = [
    "AccumulatingOptimizer",
    "__version__",
    "accumulate_gradients",
    "evaluate",
    "export",
    "plan",
    "predict",
    "prepare",
    "report",
    "train",
]


def __getattr__(name: str) -> Any:
    """Imports what is asked for on first use: `import bertaccum` must stay instant."""
    if name in __all__:
        library = name in ("AccumulatingOptimizer", "accumulate_gradients")
        module = "bertaccum.accumulation" if library else "bertaccum.api"
        return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
