"""Sphinx configuration of the documentation site; `make docs` builds it into build/docs."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from click import Context
from sphinx.application import Sphinx

from bertaccum.version import __version__

sys.path.insert(0, str(Path(__file__).parent))

project = "bertaccum"
copyright = "the authors of bertaccum, Apache-2.0"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "error_list",
]
# The function `as_markdown` reads notebooks.
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
# Two hyphens are an option's, not a dash.
smartquotes = False

myst_enable_extensions = ["colon_fence", "deflist"]
# Headings down to this level can be linked to.
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "bertaccum"
# A prompt and the output below a command are not copied.
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True


def examples_as_code(app: Sphinx, context: Context, lines: list[str]) -> None:
    """Show the examples of a command's help as code; sphinx-click has them as lines of text."""
    for number, line in enumerate(lines):
        if re.match(r"\|\s+bertaccum |\| bertaccum ", line):
            command = line.removeprefix("|").strip().replace("\\\\", "\\")
            lines[number] = f"| ``{command}``"


def as_markdown(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the text of a notebook by Markdown with its texts and its code."""
    if app.env.doc2path(page).suffix == ".ipynb":
        cells = json.loads(source[0])["cells"]
        texts = ("".join(cell["source"]) for cell in cells)
        parts = [
            f"```python\n{text}\n```" if cell["cell_type"] == "code" else text
            for cell, text in zip(cells, texts, strict=True)
        ]
        file = f"{{download}}`the notebook <{page.rpartition('/')[2]}.ipynb>`"
        source[0] = "\n\n".join([*parts, f"Download {file}."])


def short_defaults(app: Sphinx, what: str, name: str, obj: Any, options: Any, *parts: Any) -> Any:
    """Show a default that is a function by its name."""
    signature, returned = parts
    return signature and re.sub(r"<function (\w+)( at \w+)?>", r"\1", signature), returned


def setup(app: Sphinx) -> None:
    """Connect the functions that change how signatures and help texts are shown."""
    app.connect("source-read", as_markdown)
    app.connect("autodoc-process-signature", short_defaults)
    app.connect("sphinx-click-process-description", examples_as_code)
