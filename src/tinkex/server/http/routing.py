"""Routing: each route says what it takes and answers, by the very functions and types it uses.

So the description of the whole API is made from the table of routes. One module per noun: a route
parses, calls one service function, encodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from pydantic import BaseModel
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from tinkex.server.http.answers import Refused
from tinkex.server.http.exchange import Handler, guarded, refused
from tinkex.server.http.queries import Query
from tinkex.server.protocol.reading import Reader
from tinkex.server.refusals import Refusal
from tinkex.wire.routes import API_PREFIX, DASHBOARD

Reads: TypeAlias = Reader[Any] | tuple[Reader[Any], ...] | str
"""A body of one kind or of several, or of a media type that is not JSON."""


@dataclass(frozen=True, slots=True)
class Contract:
    """What a route takes and answers, for the description of the API."""

    reads: Reads | None = None  # reads the body; None: there is none
    asks: Callable[[Query], object] | None = None  # reads the query; None: it is ignored
    # Types by status; a text is a media type: bytes that are no JSON.
    answers: Mapping[int, tuple[Any, ...]] = field(default_factory=dict)
    needs_key: bool = True  # needs a tenant
    checked_later: bool = False  # wrong content fails the operation's future, not the request
    refused: type[BaseModel] = Refused  # the shape of every refusal

    @property
    def readers(self) -> tuple[Reader[Any], ...]:
        """Types of a JSON body; several where it may be one thing or another."""
        if isinstance(self.reads, tuple):
            return self.reads
        return (self.reads,) if isinstance(self.reads, Reader) else ()


class DashboardShape(NamedTuple):
    """The type of an answer by its name: loaded when the API is described, and never otherwise."""

    name: str

    def load(self) -> type[BaseModel]:
        from tinkex.server.http import dashboard_shapes

        found: type[BaseModel] = getattr(dashboard_shapes, self.name)
        return found


class ApiRoute(Route):
    """A route that can be described."""

    def __init__(
        self,
        path: str,
        handler: Handler,
        method: str,
        contract: Contract,
        refuse: Callable[[Refusal], Response] = refused,
    ) -> None:
        super().__init__(path, guarded(handler, path, refuse), methods=[method])
        self.contract = contract
        self._handler = handler

    @property
    def summary(self) -> str:
        return (self._handler.__doc__ or "").strip().partition("\n")[0]


class ByPath(BaseRoute):
    """Finds a route by its exact path instead of trying one pattern after the other; a path that is
    not found here is tried against those."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._routes: dict[tuple[str, str], Route] = {}
        for each in routes:
            if isinstance(each, Route) and not each.param_convertors:
                for method in each.methods or ():
                    self._routes.setdefault((method, each.path), each)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        found = self._find(scope)
        return (Match.NONE, {}) if found is None else found.matches(scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._find(scope)
        assert found is not None
        await found.handle(scope, receive, send)

    def _find(self, scope: Scope) -> Route | None:
        return self._routes.get((scope.get("method", ""), scope["path"]))


def route(
    method: str,
    path: str,
    handler: Handler,
    *answers: Any,
    reads: Reads | None = None,
    asks: Callable[[Query], object] | None = None,
    also: Mapping[int, tuple[Any, ...]] | None = None,
    needs_key: bool = True,
    checked_later: bool = False,
) -> ApiRoute:
    """A guarded route; `path` comes from `tinkex.wire.routes` or starts below the API's prefix.
    `answers` are the types of what it answers with 200, `also` those of other statuses."""
    full = path if path.startswith(API_PREFIX) else f"{API_PREFIX}{path}"
    statuses = {**({200: answers} if answers else {}), **(also or {})}
    contract = Contract(reads, asks, statuses, needs_key, checked_later)
    return ApiRoute(full, handler, method, contract)


def dashboard_route(
    path: str, handler: Handler, answers: str, *, asks: Callable[[Query], object] | None = None
) -> ApiRoute:
    """A route of the dashboard: reads something below its own prefix. `answers` is the name of
    a type in `dashboard_shapes`, or a media type."""
    kind = answers if "/" in answers else DashboardShape(answers)
    contract = Contract(asks=asks, answers={200: (kind,)})
    return ApiRoute(f"{DASHBOARD}{path}", handler, "GET", contract)
