"""The options of a command as arguments of its function."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bertaccum.options.fields import Options
from bertaccum.options.other_names import explain_option
from bertaccum.runs.paths import target_of
from bertaccum.system.progress import Progress

if TYPE_CHECKING:
    from bertaccum.training.events import Event


_Function = TypeVar("_Function", bound=Callable[..., Any])
_Config = TypeVar("_Config", bound=Options)


def takes(kind: type, hidden: Collection[str] = ()) -> Callable[[_Function], _Function]:
    """Add the options of a configuration to a function's signature, for `help` and completion.

    `**options` in the source stands for them, so that each option is declared once. A call with an
    unknown option raises a TypeError.
    """

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        keyword = inspect.Parameter.VAR_KEYWORD
        own = {n: p for n, p in signature.parameters.items() if p.kind is not keyword}
        options = [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default)
            for f in dataclasses.fields(kind)
            if f.name not in own and f.name not in hidden
        ]
        shown = signature.replace(parameters=[*own.values(), *options])

        @functools.wraps(function)
        def checked(*arguments: Any, **given: Any) -> Any:
            for name in given.keys() - shown.parameters.keys():
                close = difflib.get_close_matches(name, shown.parameters, n=1)
                hint = f"did you mean {close[0]!r}?" if close else ""
                called = function.__name__
                hint = explain_option(name, called, {called: shown.parameters}) or hint
                raise TypeError(f"{called}() has no option {name!r}{hint and f'; {hint}'}")
            return function(*arguments, **given)

        checked.__signature__ = shown  # type: ignore[attr-defined]
        return cast(_Function, checked)

    return decorate


def configured(kind: type[_Config], config: _Config | None, options: Any) -> _Config:
    config = kind(**options) if config is None else dataclasses.replace(config, **options)
    if hasattr(config, "run"):
        config = dataclasses.replace(config, **{"run": str(target_of(Path(config.run)))})
    return config


def callback_of(progress: Progress) -> Callable[[Event], None] | None:
    """Return the method of a view that shows events; None for other callbacks."""
    return getattr(progress, "event", None)
