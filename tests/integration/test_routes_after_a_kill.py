"""A call that replayed a sampler's routes is repeated along the same ones after kill -9.

What the server keeps of sampled sequences is in its memory; what a call took of it is durable.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tinkex
from support.server_process import ServerProcess
from tinkex import types
from tinkex.engine.builtin.tiny import ensure_tiny

NAME = "tinkex/tiny-llama"
"""What the support's server calls whatever it serves."""

PROMPT = [5, 17, 3, 99]
ADAM = types.AdamParams(learning_rate=1e-2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    model = ensure_tiny("tinkex/tiny-qwen3-moe", tmp_path / "models")
    made = ServerProcess(tmp_path / "home", model, snapshot_steps=1000)
    made.start()
    made.wait_ready()
    yield made
    made.end()


def learnt(run: tinkex.TrainingClient, steps: int) -> None:
    data = types.Datum(
        model_input=types.ModelInput.from_ints([*range(40)]),
        loss_fn_inputs={"target_tokens": [*range(1, 41)], "weights": [1.0] * 40},
    )
    for _ in range(steps):
        run.forward_backward([data], "cross_entropy").result()
        run.optim_step(ADAM).result()


def drawn(run: tinkex.TrainingClient) -> types.Datum:
    """A sample of the run as it is, as data for reinforcement."""
    sampler = run.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=30, seed=3, stop=[])
    prompt = types.ModelInput.from_ints(PROMPT)
    sequence = sampler.sample(prompt, 1, params).result().sequences[0]
    assert sequence.logprobs is not None
    tokens, before = [*PROMPT, *sequence.tokens], len(PROMPT) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tokens[1:],
            "logprobs": np.asarray([0.0] * before + list(sequence.logprobs), np.float32),
            "advantages": np.asarray([0.0] * before + [1.0] * len(sequence.tokens), np.float32),
        },
    )


def counted(server: ServerProcess, name: str) -> float:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@pytest.mark.parametrize("victim", ["server", "engine"])
def test_what_was_trained_along_older_routes_is_repeated_along_them_after_a_kill(
    server: ServerProcess, victim: str
) -> None:
    with tinkex.ServiceClient(base_url=server.url) as service:
        run = service.create_lora_training_client(NAME, rank=4, seed=2)
        data = [drawn(run)]
        learnt(run, 5)  # its routes are others by now
        plain = run.forward(data, "importance_sampling", {"replay_routes": 0}).result()
        first = run.forward_backward(data, "importance_sampling").result()
        assert first.metrics["e_frac_replayed:mean"] == 1.0
        assert first.metrics["loss:sum"] != plain.metrics["loss:sum"]
        run.optim_step(ADAM).result()
        if victim == "server":
            server.kill()
            server.start()
            server.wait_ready()
        else:
            server.kill_engine()
        learnt(run, 1)
        assert counted(server, "tinkex_replays_total") >= 12
        assert counted(server, "tinkex_replay_differences_total") == 0


def test_routes_are_let_go_with_the_body_of_the_call_that_replayed_them(
    tmp_path: Path,
) -> None:
    model = ensure_tiny("tinkex/tiny-qwen3-moe", tmp_path / "models")
    server = ServerProcess(tmp_path / "home", model, snapshot_steps=2)
    server.start()
    try:
        server.wait_ready()
        with tinkex.ServiceClient(base_url=server.url) as service:
            run = service.create_lora_training_client(NAME, rank=4, seed=2)
            run.forward_backward([drawn(run)], "importance_sampling").result()
            run.optim_step(ADAM).result()
            assert routes_kept(server) == 1
            for _ in range(4):  # snapshots, the one before the last is no longer needed
                learnt(run, 2)
            run.save_state("last").result()
            assert routes_kept(server) == 0
    finally:
        server.end()


def routes_kept(server: ServerProcess) -> int:
    import sqlite3

    with sqlite3.connect(f"file:{server.home / 'tinkex.db'}?mode=ro", uri=True) as database:
        (count,) = database.execute(
            "SELECT COUNT(*) FROM operations WHERE routes_blob IS NOT NULL"
        ).fetchone()
    database.close()
    return int(count)
