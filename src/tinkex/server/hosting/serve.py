"""`tinkex serve`: finds the models, takes the home and the port, and serves until told to stop.

`serve(ServeOptions(...))` is the whole command: it prints, blocks, and returns the exit status.
Whatever keeps the server from starting is one line on stderr and status 1.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinkex.server.engines.fleet import (
    FleetProblem,
    Span,
    Wanted,
    check_memory,
    choose_fleet,
    fewest_of,
    visible_gpus,
)
from tinkex.server.engines.launching import RAY_EXTRA, check_cluster_address, has_ray
from tinkex.server.engines.model_sources import Catalog, ModelNotFound, build_catalog, default_cache
from tinkex.server.hosting.log_format import LogFormat, configure
from tinkex.server.hosting.postgres_option import check_postgres
from tinkex.server.settings import (
    Limits,
    ModelSpec,
    RaySettings,
    Scaling,
    Scheduling,
    Settings,
    is_loopback,
)
from tinkex.server.storage.database.migrations import NewerDatabase
from tinkex.server.storage.database.sqlite import upgrade
from tinkex.server.storage.database.transactions import DatabaseError
from tinkex.server.storage.home import Home, HomeTaken, default_home
from tinkex.server.storage.home_rows import DATABASE_VARIABLE, WrongRows
from tinkex.server.storage.objects.binding import bound, open_objects
from tinkex.server.storage.objects.store import BadStore
from tinkex.server.tenancy.keys import ActiveKeys, KeyFile, KeyProblem, OperatorKeys
from tinkex.server.tenancy.terms import TenantTerms

if TYPE_CHECKING:
    from tinkex.server.storage.database.postgres.lease import Lease

DEFAULT_PORT = 8000
RAY_VARIABLE = "TINKEX_RAY"
_PORT_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `tinkex serve`."""

    models: tuple[str, ...] = ()  # names or folders; none: the usual model
    aliases: tuple[str, ...] = ()  # NAME=MODEL each
    host: str = "127.0.0.1"  # address to listen on
    port: int = DEFAULT_PORT  # 0 takes a free one
    home: Path | None = None  # None: the usual place
    # address of a PostgreSQL that keeps the rows; None: a file in the home
    database: str | None = None
    device: str = "auto"  # auto, cpu, cuda or cuda:N
    dtype: str = "auto"  # auto, float32 or bfloat16
    base: str = "auto"  # form of the base's matrices: auto (in `dtype`), fp8 or fp8-weights
    steady: bool = False  # on a GPU: batch-invariant results
    engines: Wanted = "auto"  # of each model: a number, a range, or as many as there are devices
    log_format: LogFormat = "text"  # of the server's log
    quiet: bool = False  # whether only problems are logged
    record_samples: bool = True  # whether samples are kept to be read
    limits: Limits = field(default_factory=Limits)  # of requests and tenants
    engine: Mapping[str, float] = field(default_factory=dict)  # an engine's own settings, by name
    scaling: Scaling = field(default_factory=Scaling)  # when engines come and go, within a range
    ray: str | None = None  # address of a cluster; None: the environment's, or none
    # the resources each engine asks Ray for
    ray_resources: Mapping[str, float] = field(default_factory=dict)
    ray_shared: tuple[Path, ...] = ()  # folders that are the same on every node
    objects: str | None = None  # address of an object store; None: files in the home


class CannotServe(Exception):
    """Why the server does not start, in one line with the fix."""


def serve(options: ServeOptions, environ: Mapping[str, str] | None = None) -> int:
    """Serve until interrupted; returns the exit status."""
    environ = os.environ if environ is None else environ
    configure(options.log_format, quiet=options.quiet)
    # One text is read by the thread it came to: its library's own threads know no tenants.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        return _serve(options, environ)
    except (
        BadStore,
        CannotServe,
        FleetProblem,
        HomeTaken,
        WrongRows,
        KeyProblem,
        ModelNotFound,
    ) as error:
        print(f"tinkex serve: {error}", file=sys.stderr)
        return 1


def _serve(options: ServeOptions, environ: Mapping[str, str]) -> int:
    """Cheap checks come first: a mistake should not cost the time to find a model."""
    root = (options.home or default_home(environ)).expanduser().absolute()
    ray = _ray(options, environ, root)
    if options.scaling != Scaling() and not isinstance(options.engines, Span):
        raise CannotServe("--scaling means nothing without a span of engines: --engines 1-4")
    for option, value in (("--database", options.database), ("--objects", options.objects)):
        if value == "":
            raise CannotServe(f"{option} is empty: give an address, or leave the option out")
    database = options.database or environ.get(DATABASE_VARIABLE)
    if database:
        return _serve_in_turn(options, environ, root, database, ray)
    home = _take(root)
    with contextlib.ExitStack() as undo:
        undo.callback(home.release)
        keys = _keys(root, options.host)
        open_objects(root, options.objects or environ.get("TINKEX_OBJECTS"), environ)
        listener = undo.enter_context(listening(options.host, options.port))
        catalog = build_catalog(options.models, options.aliases, default_cache(environ), environ)
        settings = _settings(options, root, listener, keys, catalog, ray)
        home.name(settings.address)
        # The web server is a third of a second to import: not for a mistake in an option.
        from tinkex.server.hosting.terminal import run

        undo.pop_all()
        with listener:
            return run(settings, home, listener)


def _serve_in_turn(
    options: ServeOptions,
    environ: Mapping[str, str],
    root: Path,
    database: str,
    ray: RaySettings | None,
) -> int:
    """With a database of its own, a server waits while another has it. It has done all it can
    before: found the models, loaded its modules. The port is taken together with the database, so
    that no client comes early."""
    keys = _keys(root, options.host)
    catalog = build_catalog(options.models, options.aliases, default_cache(environ), environ)
    from tinkex.server.hosting.terminal import run  # now, not when another server has died

    lease, listener = _turn(database, options.host, options.port)
    with contextlib.ExitStack() as undo:
        undo.callback(lease.give_back)
        undo.enter_context(listener)
        home = _take(root, lease)
        open_objects(root, options.objects or environ.get("TINKEX_OBJECTS"), environ)
        settings = _settings(options, root, listener, keys, catalog, ray)
        undo.pop_all()
        home.name(settings.address)
        with listener:
            return run(settings, home, listener)


def _turn(database: str, host: str, port: int) -> tuple[Lease, socket.socket]:
    """Take database and port as soon as both are free. A server that hangs keeps its port, even
    after it has lost the database: then this one waits for the port."""
    waited = False

    def tell(why: str) -> None:
        nonlocal waited
        waited = True
        print(f"tinkex serve: {why}", flush=True)

    while True:
        lease = _lease(database, f"{host}:{port}", tell)
        try:
            return lease, listening(host, port)
        except CannotServe as problem:
            lease.give_back()
            if not (waited or lease.follows_one_at(port)):
                raise
            tell(f"{problem}, or end what has it: waiting until it is free")
            _wait_for_port(host, port)
        except BaseException:
            lease.give_back()
            raise


def _wait_for_port(host: str, port: int) -> None:
    while True:
        with contextlib.suppress(CannotServe):
            listening(host, port).close()
            return
        time.sleep(_PORT_LOOK_S)


def _lease(database: str, address: str, tell: Callable[[str], object]) -> Lease:
    """Take the database as soon as no other server has it."""
    check_postgres("--database", database, CannotServe)
    from tinkex.server.storage.database.postgres import lease

    try:
        return lease.wait(database, address, tell)
    except DatabaseError as error:
        raise CannotServe(f"--database cannot be used: {error}") from error


def _settings(
    options: ServeOptions,
    home: Path,
    listener: socket.socket,
    keys: Mapping[str, str] | None,
    catalog: Catalog,
    ray: RaySettings | None,
) -> Settings:
    gpus = 0 if ray or options.device == "cpu" else visible_gpus()
    ranks = int(options.engine.get("ranks", 1))
    engines, devices = choose_fleet(
        options.engines, len(catalog.models), options.device, gpus, ranks
    )
    if not (ray or gpus):
        folders = [model.folder for model in catalog.models]
        check_memory(engines, folders, options.dtype, options.engine.get("packed_experts"))
    return Settings(
        home=home,
        models=tuple(
            ModelSpec(model.name, str(model.folder), str(model.tokenizer_dir))
            for model in catalog.models
        ),
        host=options.host,
        port=listener.getsockname()[1],
        keys=keys,
        operators=OperatorKeys(KeyFile(home)),
        terms=TenantTerms(home),
        record_samples=options.record_samples,
        aliases=catalog.aliases,
        device=options.device,
        dtype=options.dtype,
        base=options.base,
        steady=options.steady,
        limits=options.limits,
        objects=bound(home),
        engine=options.engine,
        engines=engines,
        fewest_engines=fewest_of(options.engines),
        scaling=options.scaling,
        devices=devices,
        ray=ray,
        scheduling=_scheduling(options.engine),
    )


def _ray(options: ServeOptions, environ: Mapping[str, str], root: Path) -> RaySettings | None:
    address = options.ray if options.ray is not None else environ.get(RAY_VARIABLE)
    if options.ray is not None or address:
        check_cluster_address(address or "", CannotServe)
    if not address:
        if options.ray_resources or options.ray_shared:
            raise CannotServe("--ray-resource and --ray-shared mean nothing without --ray")
        return None
    if not has_ray():
        raise CannotServe(f"--ray {address} needs Ray, which is not installed: {RAY_EXTRA}")
    if options.device.startswith("cuda:"):
        raise CannotServe(
            f"--device {options.device} names a GPU of this machine; on a cluster Ray chooses: "
            "give --device cuda"
        )
    shared = tuple(path.absolute() for path in options.ray_shared)
    for path in shared:
        if not (path.is_dir() or root.is_relative_to(path)):  # a home is made when it is taken
            raise CannotServe(
                f"--ray-shared {path} is no folder of this machine: the server's models and home "
                "have to lie in it; name it as it is here, or leave it out"
            )
    return RaySettings(address, options.ray_resources, tuple(map(str, shared)))


def _scheduling(engine: Mapping[str, float]) -> Scheduling:
    """The server sends an engine no more runs than the engine was told to hold."""
    runs = engine.get("max_runs")
    return Scheduling() if runs is None else Scheduling(resident_runs=int(runs))


def _keys(home: Path, host: str) -> Mapping[str, str] | None:
    """The configured keys. Without any, every key is its own tenant, on loopback only."""
    file = KeyFile(home)
    if file.list():
        return ActiveKeys(file)
    if not is_loopback(host):
        _found(host, 0)
        raise CannotServe(
            f"{host} can be reached by others and {home} has no keys: create one with "
            f"`tinkex keys create NAME --home {home}`, or serve on 127.0.0.1"
        )
    return None


def _take(root: Path, lease: Lease | None = None) -> Home:
    """Report now, not after the models are found, that the home cannot be taken."""
    try:
        home = Home(root, lease=lease)
    except OSError as error:
        raise CannotServe(f"home {root} cannot be used: {error.strerror}") from error
    if lease is None:
        _check_rows(home)
    return home


def _check_rows(home: Home) -> None:
    """Migrate the rows now, where a problem can be reported in one line."""
    try:
        upgrade(home.database)
    except (DatabaseError, NewerDatabase) as error:
        home.release()
        fix = "see that you may write it and its disk has room, or restore it from a backup"
        hint = "" if isinstance(error, NewerDatabase) else f"; {fix}"
        raise CannotServe(f"{home.database} cannot be opened: {error}{hint}") from error


def listening(host: str, port: int) -> socket.socket:
    """A listening TCP socket; raises `CannotServe`."""
    family, kind, protocol, _, address = _found(host, port)
    # Only for a socket that says it is TCP does asyncio let answers go without waiting for
    # acknowledgements of what went before (TCP_NODELAY): 40 ms on every request.
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        raise CannotServe(
            f"port {port} on {host} cannot be taken ({error.strerror}): choose another with --port"
        ) from error
    listener.setblocking(False)
    return listener


def _found(host: str, port: int) -> tuple[Any, ...]:
    """The address that a name stands for, as sockets take it; raises `CannotServe`."""
    kind, protocol = socket.SOCK_STREAM, socket.IPPROTO_TCP
    try:
        return socket.getaddrinfo(host, port, type=kind, proto=protocol)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise CannotServe(
            f"--host {host[:100]!r} is not an address of this machine: give one, such as 127.0.0.1"
        ) from error
