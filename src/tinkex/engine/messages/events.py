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

    runs: int  # it holds
    weights: int  # loaded for sampling
    pages_used: int  # of the sampling cache
    pages_total: int  # of the sampling cache
    adapter_bytes: int  # of runs and of weights for sampling
    prepared: bool = True  # whether nothing is left that a first call would have to wait for
    host_bytes: int = 0  # of runs that wait in the host's memory


Result: TypeAlias = (
    RunInfo | ForwardBackwardResult | OptimStepResult | SaveResult | SampleResult | Stats | None
)


@dataclass(frozen=True, slots=True)
class Ready:
    """The first event of a worker: the model is loaded. The facts a server publishes."""

    architecture: str  # the model's, by its config's name
    vocab_size: int  # logits of a token
    max_context: int  # tokens of a sequence
    parameters: int  # of the base model
    device: str  # it computes on
    dtype: str  # of its weights
    max_rank: int  # of an adapter
    page_bytes: int = 0  # of one page of the sampling cache
    memory_bytes: int | None = None  # of the device; None: not known
    memory_plan: Mapping[str, int] = field(default_factory=dict)  # what those are for
    run_room: int | None = None  # bytes of all runs together, device and host; None: not bounded
    rank_bytes: int = 0  # of a run for each of its ranks, all modules trained
    steady: bool = False  # no bit of a request, trained or sampled, depends on who is beside it
    max_training: int | None = None  # tokens of a trained sequence that memory is planned for
    is_away: bool = False  # it sees no folder of the server's
    max_data: int | None = None  # datums of a training call; None: not known


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
    """A command was carried out; `seconds` is what its batch took, where it was in one."""

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
