"""Prints a sample while it is being made."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.terminal.tables import harmless

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
        # A space that is taken out once more is known may have been printed.
        as_it_is = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return str(self._tokenizer.decode(self._tokens, **as_it_is))

    def _new(self, text: str) -> str:
        new = text[len(self._printed) :]
        self._printed = text if new else self._printed
        return new


CUT_SHORT = "It was cut at the limit: --max-tokens N for more"


class NoStreams(CliError):
    """The server cannot send a sample while it is being made."""


class Pace:
    """How fast tokens came. Of a stream, the rate is that after its first tokens: the time before
    them is a model's getting ready, and is said apart."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._first: tuple[float, int] | None = None

    def seen(self, tokens: int) -> None:
        """Notes that the first `tokens` have come."""
        if self._first is None and tokens:
            self._first = time.monotonic(), tokens

    def said(self, tokens: int) -> str:
        """`43 tokens, 31.2 tokens/s`."""
        since, before = self._first or (self._began, 0)
        wait = f"first after {since - self._began:.1f} s, " if self._first else ""
        if tokens == before:
            return f"{tokens} tokens, {wait}".removesuffix(", ")
        seconds = max(time.monotonic() - since, 1e-6)
        return f"{tokens} tokens, {wait}{(tokens - before) / seconds:.1f} tokens/s"


def stream_sample(
    context: CommandContext,
    client: Any,
    tokenizer: Any,
    prompt: ModelInput,
    params: SamplingParams,
    pace: Pace,
) -> None:
    """Writes the text as it comes, then on stderr why it ended and how fast it was."""
    text = TextSoFar(tokenizer)
    out = context.streams.out
    reason, count = None, 0
    for piece in pieces(context, client, prompt, params):
        count += len(piece.tokens)
        pace.seen(count)
        out.write(harmless(text.add(list(piece.tokens)), out))
        out.flush()
        reason = piece.stop_reason or reason
    out.write(harmless(f"{text.rest()}\n", out))
    out.flush()
    context.narrate(f"Sampling complete (stop_reason={reason}, {pace.said(count)})")
    if reason == "length":
        context.narrate(CUT_SHORT)


def pieces(
    context: CommandContext, client: Any, prompt: ModelInput, params: SamplingParams
) -> Iterator[Any]:
    """A sample while it is being made. Raises NoStreams where the server cannot."""
    try:
        yield from context.deadline.each(client.sample_stream(prompt, params))
    except Exception as error:
        # This very class is what the SDK raises for a server without streams.
        if type(error).__name__ == "TinkerError":
            raise NoStreams(str(error), next_step="Leave out --stream") from error
        raise
