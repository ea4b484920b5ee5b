"""Stop strings in text that arrives in pieces: nothing of one, nor after it, is passed on."""

from __future__ import annotations

from collections.abc import Sequence

from tinkex.text.formats.tags import overlap


class StopStrings:
    """Text in, text out up to the first stop string. `found` is the one that was met."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def add(self, text: str) -> str:
        """As much of the text so far as cannot belong to a stop string any more."""
        if self.found is not None or not self._stops:
            return "" if self.found is not None else text
        text = self._held + text
        places = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if places:
            place, self.found = min(places, key=lambda met: (met[0], -len(met[1])))
            self._held = ""
            return text[:place]
        keep = max(overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def end(self) -> str:
        """What was held back in case a stop string went on."""
        held, self._held = self._held, ""
        return held
