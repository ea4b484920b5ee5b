"""Every number and choice a server runs with, each in one place, with its unit in its name.

Values only: nothing here opens, starts or looks up anything.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_ON_THIS_MACHINE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that mean "all of this machine's", which no client can type."""


def is_loopback(host: str) -> bool:
    """Whether an address, or a name of one, leads only to this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request, one tenant and the whole server may use before they are refused."""

    body_bytes: int = 64 * MIB  # a request, as sent
    json_body_bytes: int = 16 * MIB  # a JSON request
    decompressed_bytes: int = 128 * MIB  # a compressed request, decompressed
    receiving_bytes: int = 512 * MIB  # all requests that are being received
    header_timeout_s: float = 30.0  # from a connection to the end of a request's headers
    body_timeout_s: float = 120.0  # for the whole body
    stall_timeout_s: float = 120.0  # while a client takes nothing of its answer
    num_samples: int = 1024  # sequences of one sampling request
    name_length: int = 128  # characters of a name a user gives
    sessions_per_tenant: int = 1000  # active sessions
    runs_per_tenant: int = 256  # live runs
    checkpoint_bytes_per_tenant: int = 256 * GIB  # all saved weights
    loss_bytes_per_tenant: int = 256 * MIB  # custom losses
    unnamed_sampler_bytes_per_tenant: int = 64 * GIB  # unnamed weights of samplers
    pending_operations_per_run: int = 4096  # accepted operations that have not ended
    pending_bytes_per_tenant: int = 2 * GIB  # bodies of these
    pending_bytes: int = 8 * GIB  # bodies of all tenants
    samples_per_tenant: int = 8192  # samples in flight
    samples: int = 32768  # samples in flight of all tenants
    sample_bytes: int = 512 * MIB  # waiting prompts
    sample_result_bytes: int = 512 * MIB  # sample results not yet fetched
    route_bytes_per_tenant: int = 256 * MIB  # routes of experts kept for replay
    route_bytes: int = 2 * GIB  # routes of all tenants
    object_cache_bytes: int = 64 * GIB  # this disk's copies of an object store's contents


@dataclass(frozen=True, slots=True)
class Timings:
    """How long things wait, live and are kept, in seconds."""

    poll_hold_s: float = 25.0  # a poll is held for an answer
    # wait for a missing `seq_id`: the first chunk of a call is sent last, and may be retried
    gap_timeout_s: float = 60.0
    # the same once an operation has arrived behind it that cannot be part of a chunked call
    gap_grace_s: float = 5.0
    session_expiry_s: float = 6 * 3600.0  # without a heartbeat
    result_retention_s: float = 24 * 3600.0  # a result that was not fetched
    fetched_result_retention_s: float = 900.0  # a result that was fetched
    sampler_retention_s: float = 24 * 3600.0  # an unnamed sampler, after its session
    unnamed_sampler_idle_s: float = 600.0  # after which a sampler without a name may make room
    record_retention_s: float = 30 * 86_400.0  # requests of runs that are over, and kept samples
    sample_retention_s: float = 900.0  # a sample's result that was not fetched
    fetched_sample_retention_s: float = 60.0  # a sample's result that was fetched
    unwatched_sample_s: float = 30.0  # a sample that no client waits for
    snapshot_interval_s: float = 120.0  # between two snapshots of a busy run
    maintenance_interval_s: float = 5.0  # between two rounds of maintenance
    integrity_interval_s: float = 600.0  # between two checks of stored files
    run_idle_s: float = 900.0  # idle time before a run gives up its place in the engine's memory
    run_turn_s: float = 5.0  # time that a busy run keeps its place while others wait for one
    run_move_s: float = 10.0  # a run stays on an engine before it is moved to one with less to do
    drain_s: float = 5.0  # time for work under way when the server stops
    # before each further start of an engine that died
    restart_backoff_s: tuple[float, ...] = (0.1, 1.0, 5.0, 15.0, 30.0)


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How much work is at an engine at once. Small windows leave the fairness of training to the
    server."""

    operations_in_flight: int = 32  # with an engine, of all runs
    tokens_in_flight: int = 131_072  # of those operations
    operations_per_run: int = 4  # with an engine, of one run
    # with an engine, of each tenant: between those the engine is fair
    sequences_in_flight: int = 256
    snapshot_steps: int = 50  # a run is snapshot after so many optimizer steps
    snapshot_payload_bytes: int = 256 * MIB  # or after so many bytes to replay
    fallback_payload_bytes: int = (
        1 * GIB
    )  # of all runs, kept so that the snapshot before the last would do
    deaths_before_poison: int = 3  # an operation that so many engines died of fails
    resident_runs: int = 64  # in an engine's memory, at most
    loaded_weights: int = 64  # of samplers, in an engine's memory


@dataclass(frozen=True, slots=True)
class Scaling:
    """When engines are started and stopped, where their number may change. An engine should have
    `runs_per_engine` busy runs, or `sequences_per_engine` being sampled, averaged over `average_s`.
    More for `grow_s` starts another. So few for `shrink_s` that the others are enough stops one."""

    runs_per_engine: float = 1.5
    sequences_per_engine: float = 48.0
    average_s: float = 10.0
    grow_s: float = 10.0
    shrink_s: float = 300.0


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A base model as it is served: its public name and where the engine reads it.

    `source` is whatever the engine's launcher accepts: a folder or a built-in's name.
    `tokenizer` is a folder or name that a client on this machine can load.
    """

    name: str
    source: str
    tokenizer: str | None = None


@dataclass(frozen=True, slots=True)
class RaySettings:
    """The Ray cluster whose nodes run the engines: `auto` or an address. `resources` are what each
    engine asks for, by Ray's names, where that is not what its model needs. Paths under `shared`
    are the same folders on every node; all others travel."""

    address: str
    resources: Mapping[str, float] = field(default_factory=dict)
    shared: tuple[str, ...] = ()


Priority = Literal["interactive", "normal", "batch"]
PRIORITIES: tuple[Priority, ...] = get_args(Priority)
"""Classes of tenants, the highest first."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What one tenant has instead of the defaults: its weight, limits by name, and its class."""

    weight: int = 1
    limits: Mapping[str, int] = field(default_factory=dict)
    priority: Priority = "normal"


@dataclass(frozen=True, slots=True)
class Settings:
    """A whole server."""

    home: Path  # where everything is kept
    models: tuple[ModelSpec, ...]  # served, each by a pool of engines
    host: str = "127.0.0.1"  # address to listen on
    port: int = 8000  # 0: none
    # tenant by a key's hash; None: any well-formed key is a tenant, right on loopback only
    keys: Mapping[str, str] | None = None
    operators: Container[str] = ()  # hashes of the keys that see everything
    terms: Mapping[str, Terms] = field(default_factory=dict)  # of single tenants, by name
    # further public names of models; the same engines serve both
    aliases: Mapping[str, str] = field(default_factory=dict)
    objects: str | None = None  # address of an object store that has everything but the rows
    device: str = "auto"  # of all engines, unless `devices` are named
    dtype: str = "auto"  # of the models' weights
    base: str = "auto"  # form of the base's matrices: auto (in `dtype`), fp8 or fp8-weights
    steady: bool = False  # on a GPU a request's bits are the same in any company
    # numbers of an engine's own settings, by name
    engine: Mapping[str, float] = field(default_factory=dict)
    engines: int = 1  # of every model
    fewest_engines: int | None = None  # always awake; None: all. The others as `scaling` says
    devices: tuple[str, ...] = ()  # dealt to the engines in turn
    # an engine starts with the first work for it, not with the server
    engines_on_demand: bool = False
    ray: RaySettings | None = None  # the cluster engines run on; None: processes beside this one
    record_samples: bool = True  # whether samples are kept to be read
    inline_bytes: int = 64 * KIB  # bodies and results up to this size lie in the database
    limits: Limits = field(default_factory=Limits)  # of requests and tenants
    timings: Timings = field(default_factory=Timings)  # how long things wait and are kept
    scheduling: Scheduling = field(default_factory=Scheduling)  # how much work is with an engine
    scaling: Scaling = field(default_factory=Scaling)  # when engines come and go

    def limits_of(self, tenant: str) -> Limits:
        terms = self.terms.get(tenant)
        return self.limits if terms is None else replace(self.limits, **terms.limits)

    def weight_of(self, tenant: str) -> int:
        """Its weight: its share of an engine relative to others of its class."""
        terms = self.terms.get(tenant)
        return 1 if terms is None else terms.weight

    def class_of(self, tenant: str) -> int:
        """The number of its priority, 0 the highest."""
        terms = self.terms.get(tenant)
        return PRIORITIES.index("normal" if terms is None else terms.priority)

    @property
    def sources(self) -> Mapping[str, str]:
        """The source of each model, by all its names."""
        own = {model.name: model.source for model in self.models}
        return own | {name: own[known] for name, known in self.aliases.items() if known in own}

    @property
    def is_private(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    @property
    def address(self) -> str:
        """The server's address for a client on this machine; empty without a port."""
        host = _ON_THIS_MACHINE.get(self.host, self.host)
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.port}" if self.port else ""
