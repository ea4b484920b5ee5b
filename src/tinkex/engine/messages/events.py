"""Events: what an engine says, of itself and in answer to commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.messages.data import FloatArray
from tinkex.engine.messages.sampling import SampleResult, TopK
from tinkex.engine.messages.training import (
    ForwardBackwardResult,
    OptimStepResult,
    RunInfo,
    SaveResult,
)


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered with the engine's `Stats`."""

    op: str


@dataclass(frozen=True, slots=True)
class Stats:
    """`prepared`: whether nothing is left that a first call would have to wait for. `runs_in_host`
    of the runs wait in the host's memory and take `host_bytes` there; `run_moves` were moved."""

    runs: int
    weights: int
    train_tokens: int
    sampled_tokens: int
    prompt_tokens: int
    pages_used: int
    pages_total: int
    adapter_bytes: int
    prepared: bool = True
    runs_in_host: int = 0
    host_bytes: int = 0
    run_moves: int = 0


Result: TypeAlias = (
    RunInfo | ForwardBackwardResult | OptimStepResult | SaveResult | SampleResult | Stats | None
)


@dataclass(frozen=True, slots=True)
class Ready:
    """The first event of a worker: the model is loaded. The facts a server publishes.

    `page_bytes` is what one page of the sampling cache takes, `memory_bytes` what the device has,
    `memory_plan` what that is for. `run_room` is what all runs together may take, device and host
    (None: not bounded), `rank_bytes` what one takes for each of its ranks, all modules trained.
    """

    architecture: str
    vocab_size: int
    max_context: int
    parameters: int
    device: str
    dtype: str
    max_rank: int
    page_bytes: int = 0
    memory_bytes: int | None = None
    memory_plan: Mapping[str, int] = field(default_factory=dict)
    run_room: int | None = None
    rank_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """New tokens of one sequence of a streamed sample, with the likeliest in their places if the
    sample asks for those."""

    op: str
    index: int
    tokens: NDArray[np.int32]
    logprobs: FloatArray
    topk: TopK | None = None


@dataclass(frozen=True, slots=True)
class Done:
    op: str
    result: Result
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """The command changed nothing. `user` mistakes name the field, the limit and the fix; `lost`
    says that the engine has no such run, which its sender has to rebuild."""

    op: str
    kind: Literal["user", "server", "cancelled", "lost"]
    message: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Before `Ready`, from an engine that is started elsewhere: what it waits for."""

    reason: str


Event: TypeAlias = Waiting | Ready | Progress | Done | Failed
