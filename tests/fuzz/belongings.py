"""What a tenant owns on a real server, and putting it where a made-up id stood.

Requests with ids nobody has end at the door; with these they get to what lies behind it.
"""

from __future__ import annotations

import random
from typing import Any

from lifecycle.calls import Calls
from support.server_process import MODEL

_SMALL = {"max_tokens": 3, "max_completion_tokens": 3, "max_output_tokens": 3, "n": 2} | {
    "num_samples": 2,
    "rank": 8,
    "limit": 50,
}
"""Sizes that are allowed and only cost time here."""


class Belongings:
    """A session with a run, checkpoints and a sampler, by the names that requests use."""

    def __init__(self, calls: Calls) -> None:
        session = calls.send("POST", "create_session", {}).json()["session_id"]
        run = self._run(calls, session, 0)
        saved = self._save(calls, run, 2, "save_weights")
        served = self._save(calls, run, 3, "save_weights_for_sampler")
        exported = self._save(calls, run, 4, "save_weights_external")
        asked = {"session_id": session, "sampling_session_seq_id": 0, "model_path": served}
        answer = calls.send("POST", "create_sampling_session", asked).json()
        sampler = answer["sampling_session_id"]
        self._seq = 4
        paths = [saved, served, exported]
        self.values: dict[str, list[Any]] = {
            "session_id": [session],
            "model_id": [run],
            "training_run_id": [run],
            "run": [run],
            "kind": ["weights", "sampler_weights", "external_weights"],
            "name": ["one"],
            "file": ["adapter_config.json", "tokenizer.json"],
            "model_name": [MODEL],
            "base_model": [MODEL],
            "model": [MODEL, served],
            "sampling_session_id": [sampler],
            "sampler_id": [sampler],
            "request_id": [f"{run}:{number}" for number in range(1, 5)],
            **dict.fromkeys(("path", "tinker_path", "source_path", "model_path"), paths),
        }

    def put_into(self, value: Any, dice: random.Random) -> Any:
        """`value` with our ids by their names, and sizes that do not cost much."""
        if isinstance(value, list):
            return [self.put_into(each, dice) for each in value]
        if not isinstance(value, dict):
            return value
        return {name: self._one(name, each, dice) for name, each in value.items()}

    def _one(self, name: str, value: Any, dice: random.Random) -> Any:
        if name in self.values and isinstance(value, str) and dice.random() < 0.9:
            return dice.choice(self.values[name])
        if name == "seq_id" and isinstance(value, int) and dice.random() < 0.7:
            self._seq += 1
            return self._seq
        if name in _SMALL and isinstance(value, int) and not isinstance(value, bool):
            return min(value, _SMALL[name])
        return self.put_into(value, dice)

    def _run(self, calls: Calls, session: str, number: int) -> str:
        made = calls.create_run(session, number, 2, 1).json()
        calls.result(made["request_id"])
        calls.result(calls.pass_(made["model_id"], 1, 0).json()["request_id"])
        return str(made["model_id"])

    def _save(self, calls: Calls, run: str, seq: int, kind: str) -> str:
        asked = {"model_id": run, "seq_id": seq, "path": "one"}
        return str(calls.result(calls.send("POST", kind, asked).json()["request_id"])["path"])
