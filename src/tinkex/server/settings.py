"""Every number and choice a server runs with, each in one place, with its unit in its name.

Values only: nothing here opens, starts or looks up anything.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_ON_THIS_MACHINE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""What listens on every address of a machine has none that could be typed."""


def is_loopback(host: str) -> bool:
    """Whether an address, or a name of one, leads nowhere but to this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request, one tenant and the whole server may take before they are told to wait."""

    body_bytes: int = 64 * MIB
    json_body_bytes: int = 16 * MIB
    decompressed_bytes: int = 128 * MIB
    receiving_bytes: int = 512 * MIB
    header_timeout_s: float = 30.0
    body_timeout_s: float = 120.0
    stall_timeout_s: float = 120.0
    num_samples: int = 1024
    name_length: int = 128
    sessions_per_tenant: int = 1000
    runs_per_tenant: int = 256
    checkpoint_bytes_per_tenant: int = 256 * GIB
    loss_bytes_per_tenant: int = 256 * MIB
    unnamed_sampler_bytes_per_tenant: int = 64 * GIB
    pending_operations_per_run: int = 4096
    pending_bytes_per_tenant: int = 2 * GIB
    pending_bytes: int = 8 * GIB
    samples_per_tenant: int = 8192
    samples: int = 32768
    sample_bytes: int = 512 * MIB
    sample_result_bytes: int = 512 * MIB
    route_bytes_per_tenant: int = 256 * MIB
    route_bytes: int = 2 * GIB
    object_cache_bytes: int = 64 * GIB


@dataclass(frozen=True, slots=True)
class Timings:
    """How long things wait, live and are kept, in seconds.

    `gap_timeout_s` bounds the wait for a missing `seq_id` that may still be on its way: a chunked
    call sends its first chunk last and may retry it. `gap_grace_s` is the shorter wait once an
    operation that is never part of a chunked call has arrived behind the gap. `run_turn_s` is how
    long a busy run keeps its place in the engine's memory while others wait for one, `run_move_s`
    how long it stays on an engine before it is moved to one with less to do.
    `unwatched_sample_s` is how long a sample goes on that no client waits for.
    """

    poll_hold_s: float = 25.0
    gap_timeout_s: float = 60.0
    gap_grace_s: float = 5.0
    session_expiry_s: float = 6 * 3600.0
    result_retention_s: float = 24 * 3600.0
    fetched_result_retention_s: float = 900.0
    sampler_retention_s: float = 24 * 3600.0
    unnamed_sampler_idle_s: float = 600.0
    record_retention_s: float = 30 * 86_400.0
    sample_retention_s: float = 900.0
    fetched_sample_retention_s: float = 60.0
    unwatched_sample_s: float = 30.0
    snapshot_interval_s: float = 120.0
    maintenance_interval_s: float = 5.0
    integrity_interval_s: float = 600.0
    run_idle_s: float = 900.0
    run_turn_s: float = 5.0
    run_move_s: float = 10.0
    drain_s: float = 5.0
    restart_backoff_s: tuple[float, ...] = (0.1, 1.0, 5.0, 15.0, 30.0)


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How much work is with the engine at once. `sequences_in_flight` is for each tenant: between
    those the engine is fair. Small windows leave the fairness of training to the server."""

    operations_in_flight: int = 32
    tokens_in_flight: int = 131_072
    operations_per_run: int = 4
    sequences_in_flight: int = 256
    snapshot_steps: int = 50
    snapshot_payload_bytes: int = 256 * MIB
    fallback_payload_bytes: int = 1 * GIB
    deaths_before_poison: int = 3
    resident_runs: int = 64
    loaded_weights: int = 64


@dataclass(frozen=True, slots=True)
class Scaling:
    """When engines are started and let go, where their number may change. An engine should have
    `runs_per_engine` runs with something to do, or `sequences_per_engine` being sampled, averaged
    over `average_s`. More for `grow_s`: another is started; so few for `shrink_s` that the others
    do: one is let go."""

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


@dataclass(frozen=True, slots=True)
class Terms:
    """What one tenant has instead of the usual: parts of an engine for each part that others get,
    and limits by name."""

    weight: int = 1
    limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    """A whole server.

    `keys` maps a key's hash to its tenant; without it any well-formed key is a tenant of its own,
    which is only right on loopback. `operators` are the hashes of the keys that see everything.
    `terms` are those of single tenants, by name.
    `aliases` maps further public names to the name of a model in `models`: the same engine serves
    both. `objects` is the address of an object store that has everything but the rows. `engine`
    holds numbers of an engine's own settings, by name. Every model has `engines` of them, dealt to
    `devices` in turn, or all on `device`; `fewest_engines` of those are always awake (None: all),
    the others as `scaling` says. With `engines_on_demand` an engine is started by the first work
    for it, not with the server. Without `record_samples` no
    sample is kept to be read. With `ray` engines run on a cluster, else as processes beside this.
    """

    home: Path
    models: tuple[ModelSpec, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    keys: Mapping[str, str] | None = None
    operators: Container[str] = ()
    terms: Mapping[str, Terms] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    objects: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    engine: Mapping[str, float] = field(default_factory=dict)
    engines: int = 1
    fewest_engines: int | None = None
    devices: tuple[str, ...] = ()
    engines_on_demand: bool = False
    ray: RaySettings | None = None
    record_samples: bool = True
    inline_bytes: int = 64 * KIB
    limits: Limits = field(default_factory=Limits)
    timings: Timings = field(default_factory=Timings)
    scheduling: Scheduling = field(default_factory=Scheduling)
    scaling: Scaling = field(default_factory=Scaling)

    def limits_of(self, tenant: str) -> Limits:
        terms = self.terms.get(tenant)
        return self.limits if terms is None else replace(self.limits, **terms.limits)

    def weight_of(self, tenant: str) -> int:
        """Its parts of an engine for each part that others get."""
        terms = self.terms.get(tenant)
        return 1 if terms is None else terms.weight

    @property
    def is_private(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    @property
    def address(self) -> str:
        """What a client on this machine calls it; empty where there is no port."""
        host = _ON_THIS_MACHINE.get(self.host, self.host)
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.port}" if self.port else ""
