"""The dashboard's JSON, as `docs/dashboard-api.md` has it. Reading only, each for its viewer."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tinkex.server.http.exchange import answer, core_of
from tinkex.server.http.large_answers import large, large_json
from tinkex.server.http.queries import Query
from tinkex.server.http.routing import dashboard_route as route
from tinkex.server.http.viewing import viewing
from tinkex.server.recording.history import Wanted
from tinkex.server.refusals import Refusal
from tinkex.server.tracing.trace_events import CONTENT_TYPE as TRACE
from tinkex.server.views.dashboard import RunState
from tinkex.server.views.queries import Page

MOST_BUCKETS = 20_000
MOST_METRICS = 64
MOST_SAMPLES = 200
MOST_HOURS = 336
_SEARCH_LIMIT = 200
_STATES: tuple[RunState, ...] = ("any", "live", "ended")


async def now(request: Request) -> Response:
    """The server at this moment."""
    return answer(await core_of(request).now.show(viewing(request)))


async def list_runs(request: Request) -> Response:
    """Runs with sparklines, newest request first."""
    viewer, asked = viewing(request), _runs_asked(Query(request.query_params))
    core = core_of(request)
    return await large_json(core, viewer.tenant, partial(core.dashboard.runs, viewer, *asked))


async def get_run(request: Request) -> Response:
    """One run with its metrics, checkpoints and descendants."""
    viewer = viewing(request)
    return answer(await core_of(request).dashboard.run(viewer, request.path_params["run"]))


async def run_history(request: Request) -> Response:
    """A run's curves, any range at any resolution."""
    viewer, wanted = viewing(request), _history_asked(Query(request.query_params))
    core, run = core_of(request), request.path_params["run"]
    find = partial(core.dashboard.history, viewer, run, wanted)
    return await large_json(core, viewer.tenant, find)


async def server_history(request: Request) -> Response:
    """The server's own curves, over time."""
    viewer, wanted = viewing(request), _server_history_asked(Query(request.query_params))
    core = core_of(request)
    find = partial(core.dashboard.server_history, viewer, wanted)
    return await large_json(core, viewer.tenant, find)


async def list_checkpoints(request: Request) -> Response:
    """Checkpoints, newest first."""
    viewer, page = viewing(request), _checkpoints_asked(Query(request.query_params))
    return answer(await core_of(request).dashboard.checkpoints(viewer, page))


async def list_samples(request: Request) -> Response:
    """Recent samples and training examples, newest first."""
    viewer, asked = viewing(request), _samples_asked(Query(request.query_params))
    core = core_of(request)
    return await large_json(core, viewer.tenant, partial(core.dashboard.samples, viewer, *asked))


async def usage(request: Request) -> Response:
    """Tokens by hour, and what is stored."""
    viewer, hours = viewing(request), _usage_asked(Query(request.query_params))
    return answer(await core_of(request).dashboard.usage(viewer, hours))


async def trace(request: Request) -> Response:
    """A session's timeline, for Perfetto."""
    core, session_id = core_of(request), request.path_params["session_id"]
    viewer = viewing(request)
    owner = await core.dashboard.session_owner(viewer, session_id)
    make = partial(core.traces.encode, owner, session_id)
    return await large(core, viewer.tenant, make, TRACE)


# ---- what may be asked


def _runs_asked(query: Query) -> tuple[Page, RunState, str | None]:
    state = query.choice("state", _STATES)
    search = query.optional_text("search")
    if search is not None and len(search) > _SEARCH_LIMIT:
        raise Refusal(f"search has {len(search)} characters; the limit is {_SEARCH_LIMIT}")
    found = next(each for each in _STATES if each == state)
    return query.page(20), found, search or None


def _history_asked(query: Query) -> Wanted:
    x = query.choice("x", ("step", "time"))
    return Wanted(
        _metrics(query),
        "time" if x == "time" else "step",
        query.optional_amount("from"),
        query.optional_amount("to"),
        _within(query, "buckets", 600, MOST_BUCKETS),
    )


def _server_history_asked(query: Query) -> Wanted:
    ends = query.optional_amount("from"), query.optional_amount("to")
    return Wanted(_metrics(query), "time", *ends, _within(query, "buckets", 600, MOST_BUCKETS))


def _checkpoints_asked(query: Query) -> Page:
    return query.page(100)


def _samples_asked(query: Query) -> tuple[str | None, str | None, int | None, int]:
    before = query.number("before", 0)
    return (
        query.optional_text("run"),
        query.optional_text("model"),
        before or None,
        _within(query, "limit", 50, MOST_SAMPLES),
    )


def _usage_asked(query: Query) -> int:
    return _within(query, "hours", 24, MOST_HOURS)


def _metrics(query: Query) -> tuple[str, ...]:
    names = tuple(name for name in (query.optional_text("metrics") or "").split(",") if name)
    if len(names) > MOST_METRICS:
        raise Refusal(f"metrics names {len(names)}; the limit is {MOST_METRICS}")
    return names


def _within(query: Query, name: str, default: int, most: int) -> int:
    found = query.number(name, default)
    if not 1 <= found <= most:
        raise Refusal(f"{name} is {found}: give 1 to {most}")
    return found


ROUTES: list[Route] = [
    route("/now", now, "Now"),
    route("/runs", list_runs, "Runs", asks=_runs_asked),
    route("/runs/{run}", get_run, "RunDetails"),
    route("/runs/{run}/history", run_history, "History", asks=_history_asked),
    route("/server/history", server_history, "History", asks=_server_history_asked),
    route("/checkpoints", list_checkpoints, "Checkpoints", asks=_checkpoints_asked),
    route("/samples", list_samples, "Samples", asks=_samples_asked),
    route("/usage", usage, "Usage", asks=_usage_asked),
    route("/sessions/{session_id}/trace", trace, TRACE),
]
