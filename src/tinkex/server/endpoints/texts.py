"""Tokenizers and templates of the served models, read when first needed, used off the event loop.

They run in a few threads of their own. So however much text one client sends, the event loop, all
other threads and other tenants' text stay free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tinkex.server.endpoints.errors import Unfit
from tinkex.server.engines.pool import Pool
from tinkex.server.fair_threads import FairThreads

if TYPE_CHECKING:
    from tinkex.text.model_text import ModelText

T = TypeVar("T")

_THREADS = 3
_MOST_WAITING = 64
"""Of one tenant: each holds a request's whole text."""
_INLINE_CHARACTERS = 8 * 1024
"""Text up to this size is worked on at once: a thread would take longer to get to it."""
_NOBODY = ""
"""Whose work it is to read a model's files."""


class Texts:
    """One `ModelText` per served model."""

    def __init__(self) -> None:
        self._threads = FairThreads(
            _THREADS, "tinkex-text", most=_THREADS - 1, waiting=_MOST_WAITING
        )
        self._loaded: dict[str, asyncio.Task[ModelText]] = {}

    async def of(self, pool: Pool) -> ModelText:
        """The text of a served model."""
        name = pool.spec.name
        loading = self._loaded.get(name)
        if loading is None or (loading.done() and loading.exception() is not None):
            loading = asyncio.get_running_loop().create_task(self._load(pool))
            self._loaded[name] = loading
        return await asyncio.shield(loading)

    async def work(self, tenant: str, size: int, work: Callable[[], T]) -> T:
        """Do some work on a tenant's text of so many characters."""
        if size <= _INLINE_CHARACTERS:
            return work()
        return await self._threads.run(tenant, work)

    def close(self) -> None:
        self._threads.close()

    async def _load(self, pool: Pool) -> ModelText:
        folder, name = pool.spec.tokenizer, pool.spec.name
        if folder is None:
            raise Unfit(f"model {name!r} has no tokenizer here: it is served by token ids only")
        return await self._threads.run(_NOBODY, partial(_read, Path(folder), name))


def _read(folder: Path, name: str) -> ModelText:
    from tinkex.text.model_text import ModelText

    return ModelText(folder, name)
