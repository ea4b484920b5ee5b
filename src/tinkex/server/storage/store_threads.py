"""A thread pool for work that waits for an object store, separate from the one for local work.

A store that takes requests and does not answer holds each thread for a minute. Requests that save,
load or send a large body wait for it; small requests must not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

T = TypeVar("T")

_THREADS = 64
_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadPoolExecutor] = WeakKeyDictionary()
_begun: WeakSet[Future[Any]] = WeakSet()


def set_apart() -> None:
    """From now on `at_store` has threads of its own in this loop: there is a store to wait for."""
    _pools.setdefault(asyncio.get_running_loop(), ThreadPoolExecutor(_THREADS, "storage"))


def is_apart() -> bool:
    """Whether there is a store to wait for."""
    return asyncio.get_running_loop() in _pools


def at_store(work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    """Do what may need an object store in a thread. Where files are all there is, in any."""
    loop = asyncio.get_running_loop()
    pool = _pools.get(loop)
    if pool is None:
        return loop.run_in_executor(None, partial(work, *arguments))
    begun = pool.submit(work, *arguments)
    _begun.add(begun)
    return asyncio.wrap_future(begun)


def is_any_held() -> bool:
    """Whether a thread waits for a store even now."""
    return any(each.running() for each in list(_begun))
