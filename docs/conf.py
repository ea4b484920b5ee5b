"""Sphinx configuration: Markdown pages, the API from docstrings, one theme."""

import subprocess
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

import tinkex
import tinkex.types

project = "tinkex"
author = "The tinkex developers"
copyright = "2026, the tinkex developers"
release = installed_version("tinkex")

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
autodoc_type_aliases = {
    name: f"tinkex.types.{name}" for name in ("LossFnType", "ModelInputChunk", "StopReason")
}
nitpicky = False
# Docstrings write `name`; it reads as code in both reStructuredText and Markdown.
default_role = "code"
# A field called `type` is in dozens of classes; a reference to the builtin is not one to them.
suppress_warnings = ["ref.python"]

# Figures come from the recorded results and the module map from docstrings, never from a page
# someone edited.
for page_script in ("performance_page.py", "module_map.py"):
    path = Path(__file__).resolve().parent.parent / "scripts" / page_script
    subprocess.run([sys.executable, str(path)], check=True, capture_output=True)

# Names load when they are first read. Autodoc would read them while it pretends to be a type
# checker, which pydantic does not survive, so they are all read now.
for package in (tinkex, tinkex.types):
    for name in package.__all__:
        getattr(package, name)


def add_defaults(app, what, name, obj, options, lines) -> None:  # type: ignore[no-untyped-def]
    """Say the defaults of a model's fields; pydantic keeps them where autodoc does not look."""
    fields = getattr(obj, "model_fields", {}) if what == "class" else {}
    optional = {key: field for key, field in fields.items() if not field.is_required()}
    told = [
        f"``{key}={field.get_default(call_default_factory=True)!r}``"
        for key, field in optional.items()
    ]
    if told:
        lines += [f"Defaults: {', '.join(told)}.", ""]


def setup(app) -> None:  # type: ignore[no-untyped-def]
    app.connect("autodoc-process-docstring", add_defaults)
