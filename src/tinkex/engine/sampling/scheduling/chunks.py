"""Chunks of sequences, which make up a step, and how one is cut or filled up with guesses.

Knows tokens, lengths and pages; never sees a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.sampling.cache.kv_cache import PAGE_SIZE
from tinkex.engine.sampling.request import Branch


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens [start, stop) of a branch, to be computed in this step. The last may be guesses."""

    branch: Branch
    start: int
    stop: int
    guesses: tuple[int, ...] = ()

    @property
    def known(self) -> int:
        """Where the branch's known tokens end and guesses begin."""
        return self.stop - len(self.guesses)

    @property
    def completes(self) -> bool:
        """Whether the branch can draw its next token after this chunk."""
        return self.known == self.branch.length

    def tokens(self) -> NDArray[np.int32]:
        own = self.branch.tokens(self.start, self.known)
        return np.append(own, np.array(self.guesses, np.int32)) if self.guesses else own


def opened_pages(chunks: Sequence[Chunk]) -> list[int]:
    """The pages that these are the first to write to and do not fill."""
    return [
        chunk.branch.pages[last]
        for chunk in chunks
        if (last := chunk.stop // PAGE_SIZE) * PAGE_SIZE >= chunk.start and chunk.stop % PAGE_SIZE
    ]


def kept_length(branch: Branch) -> int:
    """The next length at which a branch's state is worth a snapshot: the end of a page, either the
    prompt's last page that another prompt can reuse, or any page once it decodes."""
    length = branch.computed if branch.started else len(branch.request.prompt) - 1
    return max(length // PAGE_SIZE, 1) * PAGE_SIZE


def cut_at_page(chunk: Chunk) -> Chunk:
    end = kept_length(chunk.branch)
    inside = not chunk.branch.started and chunk.start < end < chunk.stop
    return replace(chunk, stop=end) if inside else chunk


def with_guesses(chunks: list[Chunk], rows: int) -> list[Chunk]:
    """If all chunks are single next tokens: the same, with guesses in the remaining rows."""
    spare = rows - sum(chunk.stop - chunk.start for chunk in chunks)
    if spare <= 0 or not all(chunk.branch.started and chunk.completes for chunk in chunks):
        return chunks
    return [
        _guessing(chunk, spare // len(chunks) + (index < spare % len(chunks)))
        for index, chunk in enumerate(chunks)
    ]


def _guessing(chunk: Chunk, count: int) -> Chunk:
    """The same with up to `count` guesses, as far as its page and the request's limit have room."""
    branch = chunk.branch
    room = len(branch.pages) * PAGE_SIZE - chunk.stop
    left = branch.request.stopping.max_tokens - len(branch.generated) - 1
    guesses = branch.guess(min(count, room, left)) if min(count, room, left) > 0 else ()
    return replace(chunk, stop=chunk.stop + len(guesses), guesses=guesses)


def by_version(chunk: Chunk) -> tuple[int, tuple[int, int]]:
    return chunk.branch.request.version.id, chunk.branch.order
