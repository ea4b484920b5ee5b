"""How an engine is started: which model, where, how much it may take. Plain values, no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One engine. None means: chosen for the device.

    `model` is a Hugging Face folder. `device` is auto, cpu, cuda or cuda:N; `dtype` is auto,
    float32 or bfloat16. `kv_bytes` is the memory of the sampling cache, `adapter_bytes` that of
    served adapters not in use. `run_bytes` is the memory of training runs on the device,
    `host_run_bytes` that of the host for runs not in use. `micro_batch_tokens` and `step_tokens`
    bound one unit of training and of sampling, so also how long each waits for the other.
    `sampling_share` is sampling's part of the time when both have work. `threads` are those of the
    CPU it computes with; several engines on one machine share its cores. `ranks` is the number of
    devices that share the model: GPUs side by side from `device` on, or processes of one CPU.
    """

    model: str
    device: str = "auto"
    dtype: str = "auto"
    max_context: int | None = None
    max_rank: int = 128
    max_runs: int = 256
    max_rows: int | None = None
    micro_batch_tokens: int | None = None
    step_tokens: int | None = None
    kv_bytes: int | None = None
    adapter_bytes: int = 2 << 30
    run_bytes: int | None = None
    host_run_bytes: int | None = None
    sampling_share: float = 0.5
    threads: int | None = None
    ranks: int = 1
