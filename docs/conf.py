"""How the guide is built: Sphinx, MyST pages, and the saved notebooks, shown and not run again."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from lakeshore import __version__

# Sphinx reads from below docs/ alone; the notebooks live at the top, where a newcomer looks for them.
_DOCS = Path(__file__).resolve().parent
(_DOCS / "notebooks").mkdir(exist_ok=True)
for _path in (_DOCS.parent / "notebooks").glob("*.ipynb"):
    shutil.copy2(_path, _DOCS / "notebooks")

project = "lakeshore"
author = "the lakeshore authors"
release = version = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
html_theme = "furo"
html_title = f"lakeshore {release}"
html_theme_options = {"source_view_link": ""}
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
napoleon_google_docstring = False
napoleon_use_ivar = True
suppress_warnings = ["mystnb.unknown_mime_type"]
highlight_language = "default"


def _as_literals(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Take a docstring's `single` backticks for code, as a reader of `help()` does."""
    lines[:] = [re.sub(r"(?<![`:])`([^`]+)`(?![`_])", r"``\1``", line) for line in lines]


def _to_copies(app: Any, name: str, source: list[str]) -> None:
    """Let the links to notebooks, which lead to the repository's, lead to the copies here."""
    source[0] = source[0].replace("](../notebooks/", "](notebooks/")


def setup(app: Any) -> None:
    """Put our reading of docstrings before napoleon's, and of pages before MyST's."""
    app.connect("autodoc-process-docstring", _as_literals, priority=100)
    app.connect("source-read", _to_copies)
