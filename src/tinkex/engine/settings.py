"""How an engine is started: which model, which device, which limits. Plain values, no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One engine. None means: chosen for the device."""

    model: str  # a Hugging Face folder
    device: str = "auto"  # auto, cpu, cuda or cuda:N
    dtype: str = "auto"  # auto, float32 or bfloat16
    base: str = "auto"  # form of the base's matrices: auto (in `dtype`), fp8 or fp8-weights
    steady: bool = False  # on a GPU a request's bits are the same in any company
    max_context: int | None = None  # tokens of a sequence
    max_rank: int = 128  # of an adapter
    max_runs: int = 256  # trained at once
    max_rows: int | None = None  # sequences of a sampling step
    # of a unit of training: also how long sampling waits for one
    micro_batch_tokens: int | None = None
    step_tokens: int | None = None  # of a unit of sampling: also how long training waits for one
    kv_bytes: int | None = None  # of the sampling cache
    adapter_bytes: int | None = None  # of served adapters that stay loaded when not in use
    run_bytes: int | None = None  # of training runs on the device
    host_run_bytes: int | None = None  # of the host, for runs not in use
    sampling_share: float = 0.5  # of the time when both have work
    memory_share: float = 1.0  # of the host's memory, which other engines have their shares of
    threads: int | None = None  # of the CPU; several engines on one machine share its cores
    ranks: int = 1  # devices that share the model: GPUs from `device` on, or processes of one CPU
    # 1: experts in MXFP4 stay packed, 0: they are widened; None: packed where widened do not fit
    packed_experts: int | None = None
    whole_experts: int = 0  # 1: each rank has some of a mixture's experts, not a part of every one
    wide_stream: int = 0  # 1: the residual stream is float32, also where matrices are bfloat16


MOST_RANKS = 64
MOST_THREADS = 1024
"""With tens of thousands the threads' stacks end the process."""
RANGES = {
    "threads": (1, MOST_THREADS),
    "ranks": (1, MOST_RANKS),
    "packed_experts": (0, 1),
    "whole_experts": (0, 1),
    "wide_stream": (0, 1),
}
"""What some of the numbers are at least and at most; the others are above 0."""
