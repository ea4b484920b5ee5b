"""The limits of one engine. Every bound that the engine enforces is named here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What training takes on."""

    max_rank: int = 128  # of an adapter
    max_runs: int = 256  # trained at once
    max_data: int = 4096  # of one call
    max_target_cells: int = 1 << 25  # of one tensor of a datum
    micro_batch_tokens: int = 2048  # of one training pass; a longer sequence goes alone
    activation_bytes: int = (
        4 << 30
    )  # kept for a backward pass; what would keep more recomputes its layers
    logit_elements: int = 1 << 24  # of the largest block of logits
    max_loss_nodes: int = 2000  # of a custom loss's graph
    run_bytes: int | None = None  # of runs on the device; None: all stay there
    host_run_bytes: int = 0  # of runs not in use that wait in the host's memory
