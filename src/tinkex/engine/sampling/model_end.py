"""What a model's folder says about where its text ends, and the tokenizer that spells it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from tinkex.engine.errors import ModelError


@dataclass(frozen=True, slots=True)
class Ending:
    """What the model's folder says about text: when it ends, and how tokens spell it."""

    eos: tuple[int, ...]
    tokenizer: Tokenizer | None


def read_ending(folder: Path) -> Ending:
    """End-of-sequence ids from generation_config.json, else config.json; the tokenizer if any."""
    for name in ("generation_config.json", "config.json"):
        ids = _eos_ids(folder / name)
        if ids:
            break
    return Ending(ids, _tokenizer(folder / "tokenizer.json"))


def _eos_ids(path: Path) -> tuple[int, ...]:
    if not path.is_file():
        return ()
    try:
        value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{path.name} cannot be read: {error}") from None
    found = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, int) for item in found):
        raise ModelError(f"{path.name}: eos_token_id must be whole numbers, not {value!r}")
    return tuple(found)


def _tokenizer(path: Path) -> Tokenizer | None:
    if not path.is_file():
        return None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for damaged files
        raise ModelError(f"tokenizer.json cannot be read: {error}") from None
