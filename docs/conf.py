"""Sphinx configuration of the documentation site; `make docs` builds it into build/docs."""

from __future__ import annotations

import sys
from pathlib import Path

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
exclude_patterns = ["README.md"]

myst_enable_extensions = ["colon_fence", "deflist"]
# Headings down to this level can be linked to.
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "bertaccum"
html_static_path = ["static"]
# A prompt and the output below a command are not copied.
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
