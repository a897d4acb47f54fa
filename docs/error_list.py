"""The errors page: every message that the source raises, as a Sphinx directive.

The messages are read from the source, so that the page holds no second copy of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from bertaccum.cli.display.sentences import with_flags

ROOT = Path(__file__).resolve().parents[1]
# Each class with its exit code.
CLASSES = {"InputError": 2, "ConfigError": 2, "RunError": 1}


class Message(NamedTuple):
    """One error: what is wrong, and what to do about it."""

    error: str
    what: str
    remedy: str


def messages() -> Iterator[Message]:
    """Yield the errors of the source whose messages are written out where they are raised."""
    for package in ("bertaccum", "data_prep"):
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            constants = dict(_constants(tree))
            for node in ast.walk(tree):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                    continue
                if node.func.id not in CLASSES or not node.args:
                    continue
                what, *rest = (_text(argument, constants) for argument in node.args)
                if re.search(r"\w{2}", what.replace("…", "")):
                    yield Message(node.func.id, what, rest[0] if rest else "")


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the strings that a module has names for."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                    yield target.id, node.value.value


def _text(node: ast.expr, constants: dict[str, str]) -> str:
    """Return a message with an ellipsis for each value that is filled in."""
    if isinstance(node, ast.JoinedStr):
        text = "".join(_text(value, constants) for value in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    elif isinstance(node, ast.Name) and node.id in constants:
        text = constants[node.id]
    elif isinstance(node, ast.BinOp):
        text = _text(node.left, constants) + _text(node.right, constants)
    else:
        return "…"
    return re.sub("…+", "…", text).replace("`…`", "--…")


class ErrorList(SphinxDirective):
    """A table of the errors of one class: `.. errors:: InputError`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Build the table."""
        rows = sorted({m for m in messages() if m.error == self.arguments[0]})
        table = nodes.table()
        group = nodes.tgroup(cols=2)
        table += group
        group += [nodes.colspec(colwidth=60), nodes.colspec(colwidth=40)]
        head, body = nodes.thead(), nodes.tbody()
        group += [head, body]
        head += self._row("Message", "What to do")
        body += [self._row(with_flags(m.what), with_flags(m.remedy)) for m in rows]
        return [table]

    def _row(self, *cells: str) -> nodes.row:
        row = nodes.row()
        for cell in cells:
            row += nodes.entry("", nodes.paragraph(text=cell))
        return row


def setup(app) -> dict[str, bool]:
    """Add the directive `errors`."""
    app.add_directive("errors", ErrorList)
    return {"parallel_read_safe": True}
