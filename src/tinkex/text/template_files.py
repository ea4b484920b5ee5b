"""The chat templates of a model's folder, by name. Most have one, which is called `default`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEFAULT = "default"
WITH_TOOLS = "tool_use"
"""What the template for conversations with tools is called, where it is another one."""


def read_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Those in files, else those in `tokenizer_config.json`."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        others = sorted((folder / "additional_chat_templates").glob("*.jinja"))
        return {DEFAULT: _read(file), **{path.stem: _read(path) for path in others}}
    found = config.get("chat_template")
    if isinstance(found, list):
        return {item["name"]: item["template"] for item in found}
    return {} if found is None else {DEFAULT: found}


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
