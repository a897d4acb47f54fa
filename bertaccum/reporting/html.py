"""Pieces of HTML. Whatever is put into them is text, and shown as it is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup, escape


def element(name: str, *children: object, **attributes: str) -> Markup:
    """An element; strings among its children are escaped, `Markup` is not.

    Args:
      name: of the element; one of ours.
      children: what it holds.
      attributes: with `class_` for `class`, `aria_label` for `aria-label`.
    """
    written = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
    )
    inner = Markup("").join(map(escape, children))
    return Markup("<{0}{1}>{2}</{0}>").format(name, written, inner)


def section(heading: str, *children: object) -> Markup:
    """A part of the page, under its heading."""
    return element("section", element("h2", heading), *children)


def pairs(values: Mapping[str, str], caption: str) -> Markup:
    """A table of names and values, without those that are not known."""
    rows = [
        element("tr", element("th", name, scope="row"), element("td", value))
        for name, value in values.items()
        if value
    ]
    return scrolling(element("table", element("caption", caption), element("tbody", *rows)))


def table(head: Iterable[str], rows: Iterable[Sequence[object]], caption: str) -> Markup:
    """A table whose first column heads the rows.

    Args:
      head: of the columns.
      rows: a value a column; `Markup` is a cell by itself.
      caption: what it shows.
    """
    top = element("tr", *(element("th", name, scope="col") for name in head))
    body = [element("tr", *_cells(row)) for row in rows]
    parts = (element("caption", caption), element("thead", top), element("tbody", *body))
    return scrolling(element("table", *parts))


def _cells(values: Sequence[object]) -> list[Markup]:
    cells = [value if isinstance(value, Markup) else element("td", value) for value in values[1:]]
    return [element("th", values[0], scope="row"), *cells]


def scrolling(content: Markup) -> Markup:
    """Wide content scrolls by itself, also by keyboard, where the page is narrow."""
    return element("div", content, class_="wide", tabindex="0")
