"""What the guarantees are tried with: small batches made from numbers, for either SDK."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import tinkex
from tinkex import types


def datum(shift: int, length: int = 20, sdk: Any = tinkex) -> Any:
    """A sequence no other shift or length gives."""
    tokens = [(shift * 7 + 4 * k + k * k % 5) % 200 + 1 for k in range(length + 1)]
    return sdk.types.Datum(
        model_input=sdk.types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * length},
    )


def batch(shift: int, count: int = 8, sdk: Any = tinkex) -> list[Any]:
    """Sequences of different lengths."""
    return [datum(shift + index, 8 + (5 * index) % 23, sdk) for index in range(count)]


def step(client: Any, data: list[Any], rate: float = 1e-2) -> Any:
    """One forward-backward and one step; the first one's result."""
    forward = client.forward_backward(data, "cross_entropy")
    client.optim_step(types.AdamParams(learning_rate=rate)).result()
    return forward.result()


def logprobs(result: Any) -> list[list[float]]:
    return [output["logprobs"].tolist() for output in result.loss_fn_outputs]


def saved_folder(home: Path, name: str) -> Path:
    """Where a server keeps the checkpoint of that name."""
    database = sqlite3.connect(home / "tinkex.db")
    try:
        (folder,) = database.execute(
            "SELECT folder FROM checkpoints WHERE name = ?", (name,)
        ).fetchone()
    finally:
        database.close()
    return home / "weights" / str(folder)
