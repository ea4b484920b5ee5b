"""One answer: streamed to the terminal as it is drawn; Ctrl-C ends it and nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinkex.cli.commands.run.streaming import NoStreams, TextSoFar, pieces
from tinkex.cli.line.context import CommandContext
from tinkex.cli.terminal.tables import harmless
from tinkex.cli.terminal.waiting import Waiting
from tinkex.cli.terminal.wrapping import WordWrap

if TYPE_CHECKING:
    from tinkex.types import ModelInput, SamplingParams

_WIDEST = 100


@dataclass(frozen=True)
class Answer:
    """What was said. `reason` is stop, length or interrupted."""

    text: str
    reason: str


class Answering:
    """Draws answers from one sampler and shows them, unless a program reads."""

    def __init__(self, context: CommandContext, client: Any, params: SamplingParams) -> None:
        self._context, self._client, self._params = context, client, params
        self.tokenizer = client.get_tokenizer()

    def answer(self, tokens: list[int]) -> Answer:
        from tinkex.types import ModelInput

        text, shown = TextSoFar(self.tokenizer), _Shown(self._context)
        said, reason = "", "stop"
        try:
            for new, ended in self._drawn(ModelInput.from_ints(tokens)):
                piece = text.add(new)
                said += piece
                shown.add(piece)
                reason = ended or reason
        except KeyboardInterrupt:
            reason = "interrupted"
        rest = text.rest()
        shown.add(rest)
        shown.end()
        return Answer(f"{said}{rest}".strip(), reason)

    def _drawn(self, prompt: ModelInput) -> Iterator[tuple[list[int], str | None]]:
        """New tokens, and at the end why it ended; all at once where a server cannot stream."""
        try:
            for piece in pieces(self._context, self._client, prompt, self._params):
                yield list(piece.tokens), piece.stop_reason
        except NoStreams:
            response = self._context.wait(self._client.sample(prompt, 1, self._params))
            (sequence,) = response.sequences
            yield list(sequence.tokens), str(sequence.stop_reason)


class _Shown:
    """An answer on its way to a terminal, wrapped between words, or to a pipe as it is."""

    def __init__(self, context: CommandContext) -> None:
        self._out = None if context.is_json else context.streams.out
        terminal = self._out is not None and self._out.isatty()
        width = min(_WIDEST, shutil.get_terminal_size((80, 24)).columns) - 1
        self._wrap = WordWrap(width) if terminal else None
        erasing = terminal and os.environ.get("TERM") != "dumb"
        self._waiting = Waiting(self._out if erasing else None)
        self._begun = False

    def add(self, text: str) -> None:
        if not self._begun:  # templates leave a line end or a space before the answer
            text = text.lstrip()
            self._begun = bool(text)
        self._write(text if self._wrap is None else self._wrap.add(text))

    def end(self) -> None:
        self._write(f"{'' if self._wrap is None else self._wrap.end()}\n")

    def _write(self, text: str) -> None:
        if self._out is not None and text:
            self._waiting.over()
            self._out.write(harmless(text, self._out))
            self._out.flush()
