"""Turns an adapter archive into another layout, given the folder of its base model."""

from __future__ import annotations

from pathlib import Path

from tinkex.engine.adapters.peft_files import read_adapter
from tinkex.engine.errors import UserError
from tinkex.engine.exports.adapter_layouts import Base, write_peft, write_peft_experts, write_vllm
from tinkex.engine.exports.merging import write_merged
from tinkex.engine.model.headers import read_config, read_json

_ADAPTERS = {"peft": write_peft, "peft-experts": write_peft_experts, "vllm": write_vllm}

__all__ = ["UserError", "export"]


def export(archive: Path, base: Path, name: str | None, layout: str, folder: Path) -> int | None:
    """Write the adapter in `archive` into the existing, empty `folder`. Of the base model an
    adapter's layout needs `config.json` alone.

    Returns the largest rank of an adapter's module, None for a merged model. `UserError` says what
    does not fit."""
    weights = read_adapter(archive)
    if layout == "merged":
        write_merged(weights, base, folder)
        return None
    return _ADAPTERS[layout](weights, Base(name, read_config(base), _prefix(base)), folder)


def _prefix(base: Path) -> str:
    """Of the decoder: a model with a vision tower beside it has its text part apart."""
    return "model.language_model" if "text_config" in read_json(base / "config.json") else "model"
