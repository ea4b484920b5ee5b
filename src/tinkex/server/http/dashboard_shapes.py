"""The dashboard's answers as types, for the description of the API; a test holds answers against
them. `docs/dashboard-api.md` says what they mean."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tinkex.types.tinker_path import CheckpointKind


class Shape(BaseModel):
    # Only the description of the API needs them built.
    model_config = ConfigDict(extra="forbid", defer_build=True)


class Advice(Shape):
    kind: str
    severity: Literal["warning", "error"]
    text: str
    since: float
    run: str | None
    name: str | None
    tenant: str | None


class Viewer(Shape):
    tenant: str
    operator: bool


class Places(Shape):
    resident: int
    places: int


class MemoryPart(Shape):
    name: str
    bytes: int


class Memory(Shape):
    total_bytes: int | None
    parts: list[MemoryPart]
    plan: list[MemoryPart]


class Cache(Shape):
    used_pages: int
    total_pages: int


class Engine(Shape):
    name: str
    model: str
    phase: Literal["asleep", "starting", "ready", "restarting", "stopped"]
    reason: str
    draining: str | None
    life: int
    device: str | None
    dtype: str | None
    parameters: int | None
    max_context: int | None
    deaths: int
    busy: float
    operations: int
    samples: int
    runs: Places
    adapters: int | None
    memory: Memory
    cache: Cache | None


class Waiting(Shape):
    kind: Literal["training", "sampling"]
    run: str | None
    name: str | None
    tenant: str
    model: str
    engine: str | None
    count: int
    running: int
    state: str
    reason: str
    waited_s: float


class Speeds(Shape):
    training: float
    prefill: float
    sampled: float


class Tokens(Shape):
    training: int
    prefill: int
    sampled: int


class Tenant(Shape):
    tenant: str
    runs: int
    operations: int
    samples: int
    tokens_per_s: Speeds


class Limit(Shape):
    name: str
    tenant: str
    used: int
    limit: int


class Disk(Shape):
    free_bytes: int | None


class Now(Shape):
    at: float
    started_at: float
    version: str
    viewer: Viewer
    engines: list[Engine]
    queue: list[Waiting]
    tokens_per_s: Speeds
    totals: Tokens
    tenants: list[Tenant]
    limits: list[Limit]
    disk: Disk
    advice: list[Advice]


class Spark(Shape):
    metric: str
    x: list[float]
    y: list[float]


class Run(Shape):
    run: str
    name: str | None
    note: str | None
    tenant: str
    session: str
    model: str
    rank: int | None
    state: Literal["live", "stopping", "ended"]
    created_at: float
    last_request_at: float
    ended_at: float | None
    step: int
    last_loss: float | None
    tokens: int
    tokens_per_s: float | None
    parent: str | None
    spark: Spark
    advice: list[Advice]


class Cursor(Shape):
    offset: int
    limit: int
    total_count: int


class Runs(Shape):
    runs: list[Run]
    cursor: Cursor


class Metric(Shape):
    name: str
    last: float | None
    help: str | None


class Checkpoint(Shape):
    path: str
    run: str
    run_name: str | None
    tenant: str
    model: str
    kind: CheckpointKind
    name: str
    step: int
    size_bytes: int
    public: bool
    created_at: float
    expires_at: float | None


class Child(Shape):
    run: str
    name: str | None
    parent: str


class RunDetails(Run):
    metrics: list[Metric]
    checkpoints: list[Checkpoint]
    children: list[Child]
    user_metadata: dict[str, str] | None


class Series(Shape):
    x: list[float]
    min: list[float]
    max: list[float]
    mean: list[float]
    count: list[int]


class History(Shape):
    run: str | None
    x: Literal["step", "time"]
    from_: float | None = Field(alias="from")
    to: float | None
    last: int
    points: int
    series: dict[str, Series]


class Checkpoints(Shape):
    checkpoints: list[Checkpoint]
    cursor: Cursor


class Prompt(Shape):
    tokens: list[int]
    left_out: int
    text: str | None
    pieces: list[str] | None


class Output(Prompt):
    logprobs: list[float | None] | None
    advantages: list[float | None] | None


class Sample(Shape):
    id: int
    at: float
    tenant: str
    kind: Literal["sample", "datum"]
    run: str | None
    run_name: str | None
    model: str
    sampler: str | None
    weights: str | None
    step: int | None
    prompt: Prompt
    output: Output
    finish_reason: str | None
    of: int
    index: int


class Samples(Shape):
    recording: bool
    samples: list[Sample]


class Hour(Shape):
    hour: float
    tenant: str
    model: str
    training: int
    prefill: int
    prefill_cached: int
    sampled: int


class Stored(Shape):
    tenant: str
    checkpoints: int
    bytes: int


class Usage(Shape):
    usage: list[Hour]
    storage: list[Stored]


class News(Shape):
    id: str
    event: Literal["point", "run", "checkpoint", "sample"]
    data: dict[str, Any]


class Poll(Shape):
    id: str
    reset: bool
    events: list[News]
