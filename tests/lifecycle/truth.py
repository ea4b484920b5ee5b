"""What the same history must always give: the bytes of a checkpoint, a loss, a sample.

Shared by all walks over one server: the first to see a history writes down what came of it, every
later one, after whatever crashes and in whatever company, must see the same.
"""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

from lifecycle.model import Checkpoint, State
from tinkex.server.protocol.forward_codec import same_result
from tinkex.wire.protobuf import decode_sample_response

_ROUNDING = 1e-4


class Truth:
    """Everything seen so far on one server."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._files: dict[str, str] = {}
        self._passes: dict[tuple[str, int], bytes] = {}
        self._samples: dict[str, Any] = {}
        self.repeats = 0

    def check_files(self, checkpoint: Checkpoint) -> None:
        """The tensors of a checkpoint, and the step it says it was saved at."""
        folder, step = self._row(checkpoint.path)
        assert step == checkpoint.state.step, (checkpoint.path, step, checkpoint.state)
        digest = hashlib.sha256()
        for path in sorted((self._home / "weights" / folder).glob("*.safetensors")):
            digest.update(path.name.encode() + path.read_bytes())
        found = digest.hexdigest()
        known = self._files.setdefault(checkpoint.bits, found)
        assert found == known, f"{checkpoint.path}: other bytes, same history"
        self.repeats += known is not found

    def check_pass(self, state: State, batch: int, result: bytes) -> None:
        known = self._passes.setdefault((state.weights, batch), result)
        assert same_result(known, result), (state, batch)
        self.repeats += known is not result

    def check_sample(self, weights: str, path: str | None, body: bytes) -> None:
        """The same tokens; logprobs but for rounding, as a cached prompt is summed otherwise."""
        found = decode_sample_response(body, ("0",))
        assert found.weights is not None
        assert found.weights.path == path
        tokens = list(found.sequences[0].tokens)
        known = self._samples.setdefault(weights, (tokens, found))
        assert known[0] == tokens, (weights, known[0], tokens)
        for one, other in zip(_numbers(known[1]), _numbers(found), strict=True):
            assert np.abs(one - other).max() < _ROUNDING, weights
        self.repeats += known[1] is not found

    def _row(self, path: str) -> tuple[str, int]:
        database = sqlite3.connect(self._home / "tinkex.db")
        try:
            folder, step = database.execute(
                "SELECT folder, step FROM checkpoints WHERE path = ?", (path,)
            ).fetchone()
        finally:
            database.close()
        return str(folder), int(step)


def _numbers(found: Any) -> tuple[Any, Any]:
    prompt = np.array(found.prompt_logprobs[1:], np.float64)
    return prompt, np.array(found.sequences[0].logprobs, np.float64)
