"""Sphinx configuration: Markdown pages, the API from docstrings, one theme."""

from importlib.metadata import version

project = "tinkex"
author = "The tinkex developers"
copyright = "2026, the tinkex developers"
release = version("tinkex")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"tinkex {release}"
html_static_path: list[str] = []

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
nitpicky = False
