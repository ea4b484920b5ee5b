"""A conversation: who said what, as the model's chat template takes it and as a file keeps it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinkex.cli.errors import CliError, check_text
from tinkex.cli.whole_file import write_whole

READABLE = (".md", ".txt")


@dataclass
class Conversation:
    """`model` is what it is held with; `turns` are the user's and the assistant's."""

    model: str
    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    def messages(self) -> list[dict[str, str]]:
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.turns]

    def encoded(self, tokenizer: Any) -> list[int]:
        """Token ids up to where the model answers."""
        try:
            ids = tokenizer.apply_chat_template(
                self.messages(), add_generation_prompt=True, return_dict=False
            )
        except Exception as error:
            raise CliError(
                "This model has no usable chat template",
                f"Details: {error}",
                'Without one: tinkex run sample --prompt "..."',
            ) from error
        return [int(token) for token in ids]

    def ask(self, text: str) -> None:
        """A message to be answered. One before it that never was is forgotten: turns alternate."""
        check_text(text)
        if self.turns and self.turns[-1]["role"] == "user":
            self.turns.pop()
        self.turns.append({"role": "user", "content": text})

    def answered(self, text: str) -> None:
        self.turns.append({"role": "assistant", "content": text})

    def take_back(self) -> str | None:
        """Forgets the last question and its answer, if any; the question."""
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return turn["content"]
        return None

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model, "messages": self.messages()}

    def save(self, path: Path) -> None:
        """As JSON, or as text to read where the name says so. Never over an existing file."""
        if path.exists():
            raise CliError(f"{path} exists already: give another name")
        try:
            write_whole(path, self._readable() if path.suffix in READABLE else self._json())
        except OSError as error:
            raise CliError(f"Failed to write {path}", f"Details: {error}") from error

    def _json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    def _readable(self) -> str:
        said = [f"**{turn['role']}**: {turn['content']}\n" for turn in self.messages()]
        return "\n".join([f"# Chat with {self.model}\n", *said])
