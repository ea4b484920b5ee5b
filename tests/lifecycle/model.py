"""What must be true, in plain Python: who owns what, what it holds, and what may be done with it.

A run's state is named by its history: equal names mean equal bits. Knows nothing of HTTP.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any


def named(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


@dataclass(frozen=True)
class State:
    """A run at one moment. `weights` and `optimizer` are names of histories."""

    weights: str
    optimizer: str
    gathered: tuple[int, ...] = ()
    step: int = 0

    @classmethod
    def created(cls, rank: int, seed: int) -> State:
        return cls(named("created", rank, seed), named("fresh", rank))

    def after_pass(self, batch: int) -> State:
        return replace(self, gathered=(*self.gathered, batch))

    def after_step(self, rate: float) -> State:
        made = named("step", self, rate)
        return State(made, made, (), self.step + 1)

    def loaded(self, rank: int, optimizer: bool) -> State:
        """What a run that loads this becomes."""
        return self if optimizer else State(self.weights, named("fresh", rank))


@dataclass
class Session:
    id: str
    tenant: int
    alive: bool = True
    runs: int = 0
    samplers: int = 0
    run_ids: list[str] = field(default_factory=list)
    sampler_ids: list[str] = field(default_factory=list)


@dataclass
class Run:
    id: str
    session: Session
    rank: int
    state: State
    seq: int = 0

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq


@dataclass
class Checkpoint:
    path: str
    tenant: int
    kind: str
    rank: int
    state: State
    public: bool = False
    expires: bool = False
    deleted: bool = False

    def readable_by(self, tenant: int) -> bool:
        return not self.deleted and (self.public or self.tenant == tenant)

    @property
    def bits(self) -> str:
        """Two checkpoints of the same kind with the same name hold the same bytes."""
        if self.kind == "weights":
            return named(self.kind, self.state)
        return named(self.kind, self.state.weights)


@dataclass
class Sampler:
    id: str
    tenant: int
    weights: str
    path: str | None
    seq: int = -1

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq
