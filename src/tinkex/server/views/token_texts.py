"""Token ids as the texts people read, with the tokenizers of the models served.

Each token is shown by what it adds to the text before it: tokens that are a part of a character
show nothing until it is whole. Loading a tokenizer takes a moment; it is done once, off the loop.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkex.server.engines.pool import Engines

if TYPE_CHECKING:
    from tinkex.text.light_tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_BROKEN = "\ufffd"


class TokenTexts:
    """Texts by model. Call it from a thread."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._loaded: dict[str, Tokenizer | None] = {}
        self._loading = threading.Lock()

    def of(self, model: str, tokens: list[int]) -> dict[str, Any]:
        """`text` and one of `pieces` per token, or neither."""
        tokenizer = self._tokenizer(model)
        if tokenizer is None:
            return {"text": None, "pieces": None}
        text: str = tokenizer.decode(tokens)
        return {"text": text, "pieces": pieces(tokenizer, tokens)}

    def _tokenizer(self, model: str) -> Tokenizer | None:
        pool = self._engines.find(model)
        if pool is None:
            return None
        name = pool.spec.name
        with self._loading:
            if name not in self._loaded:
                self._loaded[name] = _load(Path(pool.spec.tokenizer or pool.spec.source), name)
            return self._loaded[name]


def _load(folder: Path, name: str) -> Tokenizer | None:
    from tinkex.text.light_tokenizer import Tokenizer

    try:
        return Tokenizer(folder, name)
    except Exception as error:  # the library raises plain exceptions of its own
        logger.info("samples of %s are shown as token ids: %s", name, error)
        return None


def pieces(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    """What each token adds, decoded in a window so that characters of several tokens come out."""
    found: list[str] = []
    start, shown = 0, 0
    for index in range(len(tokens)):
        before: str = tokenizer.decode(tokens[start:shown])
        text: str = tokenizer.decode(tokens[start : index + 1])
        if text.endswith(_BROKEN) and index + 1 < len(tokens) and index + 1 - shown < 4:
            found.append("")
            continue
        found.append(text[len(before) :])
        start, shown = shown, index + 1
    return found
