"""Templates of pages and cards, rendered by Jinja.

HTML is escaped by itself. In Markdown, `text` escapes what has a meaning there.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import jinja2


def render(template: str, **values: Any) -> str:
    """Return a template of the folder `templates` with its values.

    Args:
      template: file name, such as `report.html.j2`.
      values: the template's variables; all of them.
    """
    return _environment().get_template(template).render(values)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bertaccum.reporting"),
        autoescape=lambda name: name is not None and name.endswith((".html.j2", ".css")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"text": as_text, "code": _as_code, "list_values": _list_values}
    return environment


def as_text(value: str) -> str:
    """Return text as Markdown that means nothing but the text, on one line."""
    return re.sub(r"([\\`*_\[\]<>|#&])", r"\\\1", " ".join(value.split()))


def _as_code(value: str) -> str:
    return " ".join(value.replace("`", "'").split())


def _list_values(row: dict[str, Any]) -> list[Any]:
    return list(row.values())
