"""Promises in memory: waiting requests are woken when their outcome is known. Nothing is polled.

A promise knows its owner and its outcome, not what was promised. Waiting costs one entry in a set,
so thousands of waiting polls cost almost nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from typing import Literal, NamedTuple

OutcomeKind = Literal["json", "protobuf"]


class Outcome(NamedTuple):
    """The end of a promise: the bytes a client reads. `failed` ones are always JSON."""

    kind: OutcomeKind
    body: bytes
    failed: bool = False


class Promise:
    """One outcome to come, and everyone who waits for it."""

    __slots__ = ("_waiters", "outcome", "request_id", "tenant")

    def __init__(self, request_id: str, tenant: str) -> None:
        self.request_id = request_id
        self.tenant = tenant
        self.outcome: Outcome | None = None
        self._waiters: dict[asyncio.Future[None], bool] = {}

    @property
    def is_awaited(self) -> bool:
        """Whether anyone waits for it now."""
        return bool(self._waiters)

    def resolve(self, outcome: Outcome) -> None:
        """Fix the outcome and wake everyone; the first one stays."""
        if self.outcome is None:
            self.outcome = outcome
            self._wake(patient=True)

    def dismiss(self) -> None:
        """Wake the waiters that can come back and ask again, without an outcome."""
        self._wake(patient=False)

    async def wait(self, seconds: float, patient: bool = False) -> Outcome | None:
        """The outcome. None if it is not known after so long, or when the server has to stop and
        the waiter is not `patient`."""
        if self.outcome is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = patient
            try:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(waiter, seconds)
            finally:
                self._waiters.pop(waiter, None)
        return self.outcome

    def _wake(self, patient: bool) -> None:
        """Wake those who can ask again, and the `patient` too where that is said."""
        for waiter, stays in self._waiters.items():
            if not waiter.done() and (patient or not stays):
                waiter.set_result(None)


class Promises:
    """All promises in memory, by request id. One whose outcome is also on disk is retired: it stays
    in memory while it is among the newest of those, up to `retired_bytes`."""

    def __init__(self, retired_bytes: int = 64 * 1024 * 1024, retired: int = 4096) -> None:
        self._promises: dict[str, Promise] = {}
        self._retired: OrderedDict[str, int] = OrderedDict()
        self._retired_bytes = 0
        self._limits = retired, retired_bytes

    def __len__(self) -> int:
        return len(self._promises)

    def add(self, request_id: str, tenant: str) -> Promise:
        """The promise of that id, made if there is none."""
        promise = self._promises.get(request_id)
        if promise is None:
            promise = self._promises[request_id] = Promise(request_id, tenant)
        return promise

    def get(self, request_id: str) -> Promise | None:
        return self._promises.get(request_id)

    def retire(self, promise: Promise) -> None:
        """The outcome of this promise can be read elsewhere from now on."""
        size = 0 if promise.outcome is None else len(promise.outcome.body)
        self._retired_bytes += size - self._retired.pop(promise.request_id, 0)
        self._retired[promise.request_id] = size
        number, most = self._limits
        while self._retired_bytes > most or len(self._retired) > number:
            self.drop(next(iter(self._retired)))

    def dismiss(self) -> None:
        """Wake all waiters that can come back and ask again."""
        for promise in self._promises.values():
            promise.dismiss()

    def drop(self, request_id: str) -> None:
        self._promises.pop(request_id, None)
        self._retired_bytes -= self._retired.pop(request_id, 0)
