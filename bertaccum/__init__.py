"""bertaccum: fine-tune BERT at the recommended batch size on a small GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertaccum.accumulation import AccumulatingOptimizer, accumulate_gradients

__version__ = "0.1.0"
__all__ = ["AccumulatingOptimizer", "__version__", "accumulate_gradients"]


def __getattr__(name: str) -> Any:
    """Imports the library part on first use: `import bertaccum` must stay instant."""
    if name in ("AccumulatingOptimizer", "accumulate_gradients"):
        from bertaccum import accumulation

        return getattr(accumulation, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
