"""A server in the foreground of a terminal: announced, watched while it starts, ended by signals.

The first interrupt drains: no new connections, what is under way gets its time, everything accepted
is on disk. A second one ends the process at once. Both are safe; the log knows what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time

from starlette.applications import Starlette

from tinkex.server.app import create_app
from tinkex.server.connections.slow_clients import SlowClients
from tinkex.server.connections.web import WebServer, config
from tinkex.server.core import Core
from tinkex.server.dashboard.door import invitation
from tinkex.server.engines.engine import Engine, EngineLost
from tinkex.server.engines.fleet import engine_specs
from tinkex.server.engines.worker import EngineSpec
from tinkex.server.hosting import open_files
from tinkex.server.hosting.allocator import keep_freed_memory
from tinkex.server.http.request_counts import Requests
from tinkex.server.settings import Settings
from tinkex.server.storage import store_threads
from tinkex.server.storage.home import Home
from tinkex.wire.limits import LOCAL_API_KEY

STOPPED_AT_ONCE = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STARTS = 3
"""Attempts before the server gives up an engine that never served: its process may be killed while
it loads, or a node lost. A local engine's own reason is believed at once."""


_LISTED = 16
"""Engines of a model up to which each is printed."""

_NARROW = 80
"""Default width of a terminal."""

_SNIPPET = """import tinker
service = tinker.ServiceClient(
    base_url="{address}", api_key="{key}"
)
training = service.create_lora_training_client(
    "{model}", rank=16
)
"""
"""The snippet to paste, also at Python's prompt: not indented, and with lines that no terminal
breaks."""


def run(settings: Settings, home: Home, listener: socket.socket) -> int:
    """Serve a home on a listening socket until a signal; returns the exit status."""
    open_files.allow()
    keep_freed_memory()
    status = asyncio.run(_run(settings, home, listener))
    if store_threads.is_any_held():
        # Everything is written and given back; Python would wait for what a store never answers.
        sys.stdout.flush()
        os._exit(status)
    return status


async def _run(settings: Settings, home: Home, listener: socket.socket) -> int:
    app = create_app(settings, home=home)
    server = _Server(config(app), lambda: app.state.core.dismiss_polls())
    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, server.interrupt)
    # What can be said in a line needs no traceback of the web server's beside it.
    logging.getLogger("uvicorn.error").addFilter(lambda _: _problem(app) is None)
    print(_greeting(settings), flush=True)
    starting = asyncio.create_task(_watch_start(server, app))
    watching = asyncio.create_task(_slow_clients(server, app, settings).live())
    with contextlib.suppress(SystemExit):  # the web server's, where the application did not start
        await server.serve([listener])
    watching.cancel()
    if not server.started:
        problem = _problem(app) or "the server could not start; see the error above"
        print(f"tinkex serve: {problem}", file=sys.stderr)
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        return await starting or 0
    return 0 if server.started else 1


def _problem(app: Starlette) -> str | None:
    """Why the application could not start, where that is known in words."""
    found: str | None = getattr(app.state, "problem", None)
    return found


class _Server(WebServer):
    """A web server with the signals that this command promises."""

    def interrupt(self) -> None:
        if self.should_exit:
            os._exit(STOPPED_AT_ONCE)
        # Polls that are cut off now are asked again by their clients; no need to report them.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        self.should_exit = True
        with contextlib.suppress(OSError):  # whoever read its output may be gone
            print(
                "\nstopping: finishing what is under way (Ctrl-C again stops at once)", flush=True
            )


def _slow_clients(server: _Server, app: Starlette, settings: Settings) -> SlowClients:
    requests: Requests = app.state.requests
    return SlowClients(lambda: server.server_state.connections, settings.limits, requests.was_cut)


async def _watch_start(server: _Server, app: Starlette) -> int:
    """Announce that models can serve; end the server with 1 when one cannot be loaded at all."""
    begun = time.monotonic()
    while not server.started:
        await asyncio.sleep(0.02)
    core: Core = app.state.core
    while not (core.is_ready and all(map(_has_begun, core.engines))):
        if failed := next((each for each in core.engines if _is_hopeless(each, core)), None):
            print(f"tinkex serve: {failed.name}: {failed.died_of}", file=sys.stderr)
            server.should_exit = True
            return 1
        await asyncio.sleep(0.02)
    loaded = time.monotonic()
    if not await _are_prepared(core):
        print(f"loaded after {loaded - begun:.1f} s; getting matrices into shape…", flush=True)
        while not await _are_prepared(core):
            await asyncio.sleep(0.1)
    print(f"dashboard: {dashboard_link(core)}", flush=True)
    print(f"ready after {time.monotonic() - begun:.1f} s. Ctrl-C stops.", flush=True)
    return 0


def _has_begun(engine: Engine) -> bool:
    """Whether its start is over: it serves, is not needed, or waits for something itself."""
    return engine.is_ready or engine.is_asleep or engine.is_held_up


def _is_hopeless(engine: Engine, core: Core) -> bool:
    """Whether an engine that never served would not serve after another start either."""
    believed = engine.cannot_start and core.settings.ray is None
    return engine.life == 0 and engine.deaths >= (1 if believed else _STARTS)


def dashboard_link(core: Core) -> str:
    """Where to look: on a server for this machine alone, with a token that lets one browser in."""
    address = core.settings.address
    if not core.settings.is_private:
        return f"{address}/ (asks for a key)"
    return f"{invitation(address, core.invitations.issue())} (opens once)"


async def _are_prepared(core: Core) -> bool:
    """Whether the first sample of every model would start at once. A dead engine does not count."""
    try:
        return all([await engine.is_prepared() for engine in core.engines if engine.is_ready])
    except EngineLost:
        return True


def _greeting(settings: Settings) -> str:
    address = settings.address
    names = {spec.name: spec.source for spec in settings.models}
    lines = [f"tinkex serves {address}", *(_model(name, names[name]) for name in names)]
    lines += [f"  {alias} = {target}" for alias, target in settings.aliases.items()]
    lines += _fleet(settings)
    model = next(iter(settings.aliases), next(iter(names)))
    key = "your key" if settings.keys is not None else LOCAL_API_KEY
    return "\n".join([*lines, "", _SNIPPET.format(address=address, key=key, model=model)])


def _model(name: str, source: str) -> str:
    home = os.path.expanduser("~/")
    shown = f"~/{source.removeprefix(home)}" if source.startswith(home) else source
    whole = f"  {name}  ({shown})"
    return whole if len(whole) <= _NARROW else f"  {name}\n    ({shown})"


def _fleet(settings: Settings) -> list[str]:
    """What is being started, if that is more than one engine for each model."""
    specs = engine_specs(settings)
    if len(specs) == len(settings.models):
        return []
    if settings.engines > _LISTED:
        return [f"  {settings.engines} engines of each, {_place(specs[0], settings)}"]
    return [f"  engine {spec.name}  ({_place(spec, settings)})" for spec in specs]


def _place(spec: EngineSpec, settings: Settings) -> str:
    threads = settings.engine.get("threads", spec.threads)
    return spec.device if threads is None else f"threads: {threads}"
