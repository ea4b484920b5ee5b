"""What a model's folder says about where its text ends, and the tokenizer that spells it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tinkex.engine.errors import ModelError


@dataclass(frozen=True, slots=True)
class Ending:
    """What the model's folder says about text: when it ends, and how tokens spell it."""

    eos: tuple[int, ...]
    tokenizer: Tokenizer | None


def read_ending(folder: Path) -> Ending:
    """End-of-sequence ids from generation_config.json, else config.json, else those of the
    tokenizer's settings; the tokenizer if any."""
    tokenizer = _tokenizer(folder / "tokenizer.json")
    for name in ("generation_config.json", "config.json"):
        if ids := _eos_ids(folder / name):
            return Ending(ids, tokenizer)
    return Ending(_eos_of_text(folder / "tokenizer_config.json", tokenizer), tokenizer)


def _eos_ids(path: Path) -> tuple[int, ...]:
    said = _read(path)
    value = said.get("eos_token_id")
    if value is None:  # of a model that was published with a vision tower
        value = (said.get("text_config") or {}).get("eos_token_id")
    found = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) for item in found):
        raise ModelError(f"{path.name}: eos_token_id must be whole numbers, not {value!r}")
    return tuple(found)


def _eos_of_text(path: Path, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    token = _read(path).get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    found = tokenizer.token_to_id(text) if tokenizer is not None and text else None
    return () if found is None else (found,)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        said: dict[str, Any] = {**json.loads(path.read_text(encoding="utf-8"))}
    except (ValueError, TypeError) as error:
        raise ModelError(f"{path.name} cannot be read: {error}") from None
    return said


def _tokenizer(path: Path) -> Tokenizer | None:
    if not path.is_file():
        return None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for damaged files
        raise ModelError(f"tokenizer.json cannot be read: {error}") from None
    # What the file says of them is how its last user cut and filled up texts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
