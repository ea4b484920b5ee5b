"""How much one engine takes on. Every bound the engine enforces is named here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """`micro_batch_tokens` bounds the tokens of one training pass; a longer sequence goes alone.

    `activation_bytes` bounds what a training pass may keep for its backward pass; one that would
    keep more recomputes its layers instead. `logit_elements` bounds the largest block of logits.
    `run_bytes` bounds the runs on the device (None: all stay there), `host_run_bytes` those that
    are not in use and wait in the host's memory.
    """

    max_rank: int = 128
    max_runs: int = 256
    max_data: int = 4096
    max_target_cells: int = 1 << 25
    micro_batch_tokens: int = 2048
    activation_bytes: int = 4 << 30
    logit_elements: int = 1 << 24
    max_loss_nodes: int = 2000
    run_bytes: int | None = None
    host_run_bytes: int = 0
