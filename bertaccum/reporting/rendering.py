"""Rendering of the templates of HTML pages and model cards with Jinja.

Control characters in inserted values become visible escapes. In HTML, inserted values are escaped
automatically. In Markdown, the filter `text` escapes special characters.
"""

from __future__ import annotations

import re
from typing import Any

import jinja2
from markupsafe import Markup

from bertaccum.options.metrics import written
from bertaccum.system.printable import printable


def render(template: str, **values: Any) -> str:
    """Return the text of a template with its values filled in."""
    return _ENVIRONMENT.get_template(template).render(values)


def as_text(value: str) -> str:
    """Return a string on one line, with the special characters of Markdown escaped."""
    return re.sub(r"([\\`*_\[\]<>|#&])", r"\\\1", " ".join(value.split()))


def _shown(value: Any) -> Any:
    """Return a value of a template as it is written: a text has no control characters."""
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return printable(value, "\n\t") if is_text else value


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("bertaccum.reporting"),
    autoescape=lambda name: name is not None and name.endswith((".html.j2", ".css")),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    finalize=_shown,
)
_ENVIRONMENT.filters["text"] = as_text
_ENVIRONMENT.filters["written"] = written
_ENVIRONMENT.filters["code"] = lambda text: " ".join(text.replace("`", "'").split())
