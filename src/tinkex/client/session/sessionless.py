"""What RestClient and AdminClient have in common: a holder without a session, and plain requests.

Clients with equal configurations share a holder for as long as one of them lives.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakValueDictionary

from pydantic import BaseModel

from tinkex.client.api import call_policies
from tinkex.client.concurrency.futures import ResultFuture
from tinkex.client.session.holder import HolderKind, InternalClientHolder
from tinkex.client.settings.config import Config
from tinkex.wire import limits

if TYPE_CHECKING:
    from tinkex.client.api.telemetry import Telemetry

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class SessionlessClient:
    """A client that opens no session. A bad key fails when it is made."""

    def __init__(
        self,
        _holder: InternalClientHolder | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
    ) -> None:
        if _holder is not None and (base_url is not None or api_key is not None):
            raise ValueError("give a holder, or base_url and api_key, not both")
        self.holder = _holder or open_shared_holder(
            Config.resolve(base_url=base_url, api_key=api_key)
        )

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """A client for an explicit configuration (an addition to the official SDK)."""
        return cls(open_shared_holder(config))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(base_url={self.holder.config.base_url!r})"

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{type(self).__name__} cannot be pickled: its connections and its key stay in this "
            "process. Create one in each process."
        )

    def get_telemetry(self) -> Telemetry | None:
        """What reports to the server, or None when nothing does."""
        return self.holder.get_telemetry()

    def _submit(self, work: Coroutine[Any, Any, T]) -> ResultFuture[T]:
        return self.holder.submit(work)

    async def _get(self, method: str, path: str, model: type[M], **params: Any) -> M:
        await self.holder.ready()
        return await self.holder.api.get(
            path, model, call_policies.REST, headers=sdk_headers(method), **params
        )


_shared: WeakValueDictionary[Config, InternalClientHolder] = WeakValueDictionary()
_shared_lock = threading.Lock()


def open_shared_holder(config: Config) -> InternalClientHolder:
    """The session-less holder of this configuration, opened now so that a bad key fails here.

    Clients with equal configurations share it; it closes when the last of them is gone.
    """
    with _shared_lock:
        holder = _shared.get(config)
        if holder is None or holder.closed or holder.forked:
            holder = _shared[config] = InternalClientHolder(config, kind=HolderKind.SESSIONLESS)
    if not holder.on_loop:
        holder.submit(holder.ready()).result_here()
    return holder


def sdk_headers(method: str) -> dict[str, str]:
    """Which public method a request comes from."""
    return {
        limits.HEADER_SDK_VERSION: limits.PROTOCOL_VERSION,
        limits.HEADER_SDK_METHOD: method,
    }
