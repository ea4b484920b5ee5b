"""Events: what an engine reports by itself and in answer to commands."""

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
    """What an engine holds and has done."""

    runs: int  # runs in its memory
    weights: int  # weights loaded for sampling
    pages_used: int  # pages of the sampling cache
    pages_total: int  # pages of the sampling cache
    adapter_bytes: int  # of runs and of weights for sampling
    prepared: bool = True  # whether nothing is left that a first call would have to wait for
    host_bytes: int = 0  # of runs that wait in the host's memory


Result: TypeAlias = (
    RunInfo | ForwardBackwardResult | OptimStepResult | SaveResult | SampleResult | Stats | None
)


@dataclass(frozen=True, slots=True)
class Ready:
    """The first event of a worker: the model is loaded. The facts that a server publishes."""

    architecture: str  # the model's architecture, from its config
    vocab_size: int  # number of logits of a token
    max_context: int  # most tokens of a sequence
    parameters: int  # number of the base model's
    device: str  # the device it computes on
    dtype: str  # dtype of its weights
    max_rank: int  # highest rank of an adapter
    page_bytes: int = 0  # size of one page of the sampling cache
    memory_bytes: int | None = None  # memory of the device; None: not known
    memory_plan: Mapping[str, int] = field(default_factory=dict)  # by purpose, in bytes
    run_room: int | None = None  # bytes of all runs together, device and host; None: not bounded
    rank_bytes: int = 0  # bytes of a run per rank, all modules trained
    steady: bool = False  # batch-invariant: no bit of a request depends on the rest of its batch
    max_training: int | None = None  # tokens of a training sequence that memory is planned for
    is_away: bool = False  # it cannot see the server's folders
    max_data: int | None = None  # most datums of a training call; None: not known


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
    """A command was carried out; `seconds` is the time of its batch, if it was in one."""

    op: str
    result: Result
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """The command failed and changed nothing. `user` mistakes name the field, the limit and the
    fix; `lost` says that the engine has no such run, which its sender has to rebuild."""

    op: str
    kind: Literal["user", "server", "cancelled", "lost"]
    message: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """Sent before `Ready` by an engine that is started elsewhere: what it waits for."""

    reason: str


Event: TypeAlias = Waiting | Ready | Progress | Done | Failed
