"""Cuts off connections whose client is too slow to send a request's head or to take an answer.

It looks at every connection once in a while, at no cost to a request. Bodies have a timeout of
their own, where they are read. A request is never cut for how long its answer takes: held polls
and token streams may last as long as the client takes what was sent.

Uses what the web server's connections expose, whichever of its parsers runs. Knows no requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from tinkex.server.settings import Limits

logger = logging.getLogger(__name__)

Reason = Literal["slow_header", "slow_reader"]
TAKEN_BYTES = 16 * 1024


@dataclass(slots=True)
class _Watched:
    """The state in which a connection was found: its last request and since when the next is
    awaited, how much it had to take and since when it has not taken enough of that."""

    cycle: object = None
    header_since: float | None = None
    unread: int = 0
    unread_since: float = 0.0


class SlowClients:
    """Watches connections: `connections` gives those open now, `cut` is called for every cut."""

    def __init__(
        self,
        connections: Callable[[], Iterable[Any]],
        limits: Limits,
        cut: Callable[[Reason], None],
    ) -> None:
        self._connections = connections
        self._header_s = limits.header_timeout_s
        self._stall_s = limits.stall_timeout_s
        self._cut = cut
        self._watched: dict[Any, _Watched] = {}

    async def live(self) -> None:
        """Look for ever, often enough for the timeouts that are set."""
        pause = min(1.0, self._header_s / 4, self._stall_s / 4)
        while True:
            await asyncio.sleep(pause)
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Cut connections that are too slow at the instant `now`."""
        before, self._watched = self._watched, {}
        for connection in list(self._connections()):
            watched = before.get(connection) or _Watched()
            reason = self._dawdles(connection, watched, now)
            if reason is None:
                self._watched[connection] = watched
            else:
                connection.transport.abort()
                self._cut(reason)
                logger.debug("cut a connection: %s", reason)

    def _dawdles(self, connection: Any, watched: _Watched, now: float) -> Reason | None:
        if self._stalls(connection.transport.get_write_buffer_size(), watched, now):
            return "slow_reader"
        return "slow_header" if self._trickles(connection, watched, now) else None

    def _stalls(self, unread: int, watched: _Watched, now: float) -> bool:
        """Growth counts as taking: a handler adds nothing while too much is left."""
        took = watched.unread - unread
        if unread == 0 or took < 0 or took >= TAKEN_BYTES:
            watched.unread, watched.unread_since = unread, now
            return False
        return now - watched.unread_since > self._stall_s

    def _trickles(self, connection: Any, watched: _Watched, now: float) -> bool:
        """Between two requests the web server counts the idle time itself, until a byte comes."""
        cycle = connection.cycle
        unanswered = cycle is not None and not cycle.response_complete
        if unanswered or watched.unread or connection.timeout_keep_alive_task is not None:
            watched.header_since = None
        elif watched.header_since is None or watched.cycle is not cycle:
            watched.header_since = now
        watched.cycle = cycle
        return watched.header_since is not None and now - watched.header_since > self._header_s
