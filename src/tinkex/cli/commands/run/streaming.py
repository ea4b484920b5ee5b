"""Prints a sample while it is being made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinkex.cli.context import CommandContext
from tinkex.cli.errors import CliError
from tinkex.cli.tables import harmless

if TYPE_CHECKING:
    from tinkex.types import ModelInput, SamplingParams

_UNFINISHED = "\ufffd"


class TextSoFar:
    """Turns growing token lists into text that can be printed piece by piece."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._printed = ""

    def add(self, tokens: list[int]) -> str:
        """The new text; a character whose bytes are still coming waits for the rest."""
        self._tokens += tokens
        return self._new(self._text().rstrip(_UNFINISHED))

    def rest(self) -> str:
        """What waited for bytes that never came."""
        return self._new(self._text())

    def _text(self) -> str:
        return str(self._tokenizer.decode(self._tokens, skip_special_tokens=True))

    def _new(self, text: str) -> str:
        new = text[len(self._printed) :]
        self._printed = text if new else self._printed
        return new


def stream_sample(
    context: CommandContext,
    client: Any,
    tokenizer: Any,
    prompt: ModelInput,
    params: SamplingParams,
) -> None:
    """Writes the text as it comes, then a line that says why it ended on stderr."""
    text = TextSoFar(tokenizer)
    out = context.streams.out
    reason = None
    try:
        for piece in client.sample_stream(prompt, params):
            out.write(harmless(text.add(list(piece.tokens)), out))
            out.flush()
            reason = piece.stop_reason or reason
    except Exception as error:
        if (
            type(error).__name__ == "TinkerError"
        ):  # what the SDK raises for a server without streams
            raise CliError(str(error), next_step="Leave out --stream") from error
        raise
    out.write(harmless(f"{text.rest()}\n", out))
    context.narrate(f"Sampling complete (stop_reason={reason})")
