"""The ASGI application: routes around a `Core` that lives as long as the application does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

# First, and from here: CPython keeps frames in chunks of 16 KiB. Ten modules deeper, numpy's
# thousands of small calls happen to straddle the end of one, and each maps and unmaps the next.
import numpy  # noqa: F401 - for when it is imported, not for what it has
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from tinkex.server.clock import Clock
from tinkex.server.connections.doorway import Doorway
from tinkex.server.core import Core
from tinkex.server.endpoints.routes import ROUTES as ENDPOINTS
from tinkex.server.endpoints.routes import close as close_endpoints
from tinkex.server.endpoints.unserved import unserved
from tinkex.server.engines.worker import Launch
from tinkex.server.http.browsers import BrowsersAtHome
from tinkex.server.http.exchange import answer
from tinkex.server.http.misplaced import misplaced
from tinkex.server.http.request_counts import Measured, Requests
from tinkex.server.http.routes import (
    admin,
    checkpoints,
    config,
    dashboard,
    dashboard_json,
    describing,
    downloads,
    files,
    futures,
    metrics,
    operating,
    runs,
    sampling,
    sessions,
    streaming,
    telemetry,
    tokenizers,
    training,
    watching,
)
from tinkex.server.http.routing import ByPath
from tinkex.server.settings import Settings
from tinkex.server.storage.home import Home
from tinkex.server.storage.objects.store import BadStore, StoreDown

ROUTES: list[BaseRoute] = [
    *config.ROUTES,
    *sessions.ROUTES,
    *training.ROUTES,
    *sampling.ROUTES,
    *futures.ROUTES,
    *telemetry.ROUTES,
    *runs.ROUTES,
    *checkpoints.ROUTES,
    *admin.ROUTES,
    *downloads.ROUTES,
    *files.ROUTES,
    *streaming.ROUTES,
    *tokenizers.ROUTES,
    *operating.ROUTES,
    *describing.ROUTES,
    *metrics.ROUTES,
    *dashboard.ROUTES,
    *dashboard_json.ROUTES,
    *watching.ROUTES,
    *ENDPOINTS,
]


def create_app(
    settings: Settings,
    launch: Launch | None = None,
    clock: Clock | None = None,
    home: Home | None = None,
) -> Starlette:
    """A server as an ASGI application. Its home is locked when it starts, unless it was before;
    other processes of its user reach it through the home."""

    requests = Requests(ROUTES)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        with _telling(app):
            core = Core(settings, launch, clock, home)
        app.state.core = core
        core.recorder.listen(requests.was_timed)
        doorway = Doorway(app, core.home.socket, core.dismiss_polls)
        try:
            with _telling(app):
                await core.start()
                doorway.open()
            yield
        finally:
            await doorway.close()
            close_endpoints(app)
            await core.stop(settings.timings.drain_s)

    app = Starlette(
        routes=[ByPath(ROUTES), *ROUTES],
        lifespan=lifespan,
        exception_handlers={HTTPException: _plain},
        middleware=[
            Middleware(Measured, requests=requests),
            Middleware(BrowsersAtHome, settings=settings),
        ],
    )
    app.state.requests = requests
    return app


_PATHS = frozenset(getattr(route, "path", "") for route in ROUTES)


async def _plain(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in the shape of every other refusal."""
    assert isinstance(error, HTTPException)
    status = error.status_code
    path = request.url.path
    if status == 404 and (mend := misplaced(path, _PATHS)):
        return answer({"detail": mend}, status)
    told = unserved(request.method, path, status)
    told = told or answer({"detail": error.detail}, status)
    told.headers.update(error.headers or {})  # of a 405, what is allowed
    return told


@contextmanager
def _telling(app: Starlette) -> Iterator[None]:
    """Report what keeps the application from starting, in words, where people know a name for
    it."""
    try:
        yield
    except (BadStore, StoreDown) as error:
        app.state.problem = str(error)
        raise
    except PermissionError as error:
        app.state.problem = (
            f"{error.filename} may not be used by this user ({error.strerror}): see whose it is "
            "(ls -l), and give it to who runs the server (chown -R)"
        )
        raise
