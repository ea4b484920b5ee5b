"""The prompt of `run sample`: text or token ids, from the command line, a file or stdin."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tinkex.cli.errors import CliError, check_text, not_text
from tinkex.cli.line.context import CommandContext

STDIN = "-"


@dataclass(frozen=True)
class Prompt:
    """What was typed: either text or token ids."""

    text: str | None = None
    tokens: list[int] | None = None

    def encode(self, tokenizer: Any, chat: bool) -> list[int]:
        """The prompt as token ids; with `chat`, as the user's turn in the model's template."""
        if self.tokens is not None:
            return self.tokens
        check_text(self.text or "")
        if not chat:
            return [int(token) for token in tokenizer.encode(self.text)]
        turn = [{"role": "user", "content": self.text}]
        try:
            ids = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
        except Exception as error:
            raise CliError(
                "This model has no usable chat template", f"Details: {error}", "Leave out --chat"
            ) from error
        return [int(token) for token in ids]


def read_prompt(context: CommandContext, text: str | None, file: str | None, chat: bool) -> Prompt:
    """The prompt from exactly one of `--prompt` and `--prompt-file`."""
    if text is not None and file is not None:
        raise click.UsageError("--prompt and --prompt-file cannot both be provided")
    if text is not None:
        prompt = Prompt(text=_stdin(context) if text == STDIN else text)
    elif file is not None:
        prompt = parse_prompt(_stdin(context) if file == STDIN else _read(Path(file)))
    else:
        raise click.UsageError("Missing prompt. Provide --prompt or --prompt-file")
    if prompt.tokens is not None and chat:
        raise click.UsageError("--chat needs a text prompt, and this one is token ids")
    return prompt


def parse_prompt(content: str) -> Prompt:
    """Token ids if the content is a JSON list of integers, or an object with such `tokens`;
    otherwise text, as it is."""
    try:
        value = json.loads(content)
    except ValueError:
        return Prompt(text=content)
    tokens = value.get("tokens") if isinstance(value, dict) else value
    if isinstance(tokens, list) and tokens and all(type(token) is int for token in tokens):
        return Prompt(tokens=tokens)
    return Prompt(text=content)


def _stdin(context: CommandContext) -> str:
    if context.stdin.isatty():
        context.note("Type the prompt, then Ctrl-D:")
    try:
        return context.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise not_text() from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"Failed to read prompt file {path}", f"Details: {error}") from error
