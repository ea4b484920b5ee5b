"""The README.md of an adapter on the Hugging Face Hub: what it is, and where it comes from."""

from __future__ import annotations

from pathlib import Path

_FIELD = "tinker_path:"


def card_path(folder: Path) -> Path:
    """Where the card of a checkpoint folder is."""
    return folder / "README.md"


def write_card(folder: Path, tinker_path: str, base_model: str | None) -> None:
    """Writes a card with front matter for the Hub and a few lines for people."""
    base = f"base_model: {base_model}\n" if base_model else ""
    model = base_model or "BASE_MODEL"
    card_path(folder).write_text(
        f"""---
{base}library_name: peft
tags:
- tinker
- tinkex
- peft
- lora
- base_model:adapter:{model}
{_FIELD} {tinker_path}
---

# LoRA adapter for {model}

Fine-tuned through the Tinker API and uploaded with tinkex from `{tinker_path}`.

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{model}"), "THIS_REPO")
```
""",
        encoding="utf-8",
    )


def tinker_path_in(card: str) -> str | None:
    """The checkpoint a card says it belongs to."""
    for line in card.splitlines():
        if line.startswith(_FIELD):
            return line.removeprefix(_FIELD).strip().strip("'\"") or None
    return None
