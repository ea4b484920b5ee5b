"""The text of one sequence while it is drawn: whole characters, nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from tinkex.text.detokenizer import Detokenizer
from tinkex.text.stop_strings import StopStrings


class SequenceText:
    """Tokens in, text for the client out. `stopped_by` is the stop string that was met."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str], keep_stop: bool) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._keep_stop = keep_stop

    @property
    def stopped_by(self) -> str | None:
        return self._stops.found

    def add(self, tokens: Sequence[int]) -> str:
        return self._through(self._detokenizer.add(tokens))

    def end(self) -> str:
        """The rest, once there are no more tokens."""
        return self._through(self._detokenizer.end()) + self._stops.end()

    def _through(self, text: str) -> str:
        if self._stops.found is not None:
            return ""
        text = self._stops.add(text)
        return text + (self._stops.found or "") if self._keep_stop else text
