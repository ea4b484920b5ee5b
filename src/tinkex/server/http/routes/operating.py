"""For those who operate a server: tidying its home; how engines are, draining, restarting them."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.core import Core
from tinkex.server.engines.engine import Engine
from tinkex.server.http.answers import Collected, EngineStates
from tinkex.server.http.bodies import read
from tinkex.server.http.exchange import answer, core_of, is_owner, sees_all, tenant_of
from tinkex.server.http.routing import route
from tinkex.server.protocol import requests
from tinkex.server.refusals import NotFound
from tinkex.wire import routes as paths


async def collectable(request: Request) -> Response:
    """What could be let go of now."""
    return answer((await _owned(request).unnamed.collectable())._asdict())


async def collect(request: Request) -> Response:
    """Let go of what the home need not keep."""
    return answer((await _owned(request).collect())._asdict())


async def list_engines(request: Request) -> Response:
    """Every engine of this server, and how it is."""
    return _answer(_operated(request))


async def drain(request: Request) -> Response:
    """Bring no new work to an engine; its runs go on elsewhere."""
    core = _operated(request)
    core.rolling.drain(await _named(request, core))
    return _answer(core)


async def resume(request: Request) -> Response:
    """Let an engine take work again."""
    core = _operated(request)
    core.rolling.resume(await _named(request, core))
    return _answer(core)


async def restart(request: Request) -> Response:
    """Drain and restart an engine, or all of them one after another."""
    core = _operated(request)
    name = (await read(request, requests.RESTART_ENGINE)).engine
    engines = list(core.engines) if name is None else [core.rolling.find(name)]
    core.rolling.restart(engines)
    return _answer(core)


def _owned(request: Request) -> Core:
    tenant_of(request)
    if not is_owner(request):
        raise NotFound("a home is tended by who owns its files: tinkex home, on its machine")
    return core_of(request)


def _operated(request: Request) -> Core:
    tenant_of(request)
    if not sees_all(request):
        raise NotFound("engines are for who operates this server: an operator's key, or its home")
    return core_of(request)


async def _named(request: Request, core: Core) -> Engine:
    return core.rolling.find((await read(request, requests.NAME_ENGINE)).engine)


def _answer(core: Core) -> Response:
    return answer({"engines": [_state(core, engine) for engine in core.engines]})


def _state(core: Core, engine: Engine) -> dict[str, Any]:
    runs = core.scheduler.residents(engine) if engine.is_ready else []
    facts = engine.facts
    return {
        "engine": engine.name,
        "model": engine.model,
        "state": _word(core, engine),
        "reason": engine.draining or engine.condition,
        "device": None if facts is None else facts.device,
        "threads": engine.spec.threads,
        "life": engine.life,
        "deaths": engine.deaths,
        "runs": len(runs),
        "operations": core.scheduler.in_flight(engine),
        "sequences": core.sampling.lanes.sequences(engine),
    }


def _word(core: Core, engine: Engine) -> str:
    """What people call how it is."""
    if core.rolling.is_waiting(engine):
        return "to be restarted" if engine.draining is None else "restarting"
    is_drained = engine.state == "draining" and core.rolling.is_empty(engine)
    return "drained" if is_drained else engine.state


ROUTES: list[Route] = [
    route("GET", paths.COLLECT_HOME, collectable, Collected),
    route("POST", paths.COLLECT_HOME, collect, Collected),
    route("GET", paths.ENGINES, list_engines, EngineStates),
    route("POST", paths.DRAIN_ENGINE, drain, EngineStates, reads=requests.NAME_ENGINE),
    route("POST", paths.RESUME_ENGINE, resume, EngineStates, reads=requests.NAME_ENGINE),
    route("POST", paths.RESTART_ENGINE, restart, EngineStates, reads=requests.RESTART_ENGINE),
]
