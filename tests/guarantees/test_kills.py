"""Guarantee 10: whichever process dies, whenever: the same numbers, and no client notices.

The short form runs with the suite. `TINKEX_LONG=1` trains 200 steps with at least 100 kills.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from guarantees.tenant import SDKS, Tenant
from support.server_process import ServerProcess
from tinkex.server.engines.model_sources import default_cache, resolve

LONG = bool(os.environ.get("TINKEX_LONG"))
STEPS, KILLS = (200, 100) if LONG else (14, 4)
MODELS = ("tinkex/tiny-llama", "tinkex/tiny-qwen3-moe", "tinkex/tiny-qwen3.5")
"""One of each kind of block. The server calls all of them by the first name."""
BLOWS = ("engine", "server", "engine", "both")


def _run(
    server: ServerProcess, kills: int, blows: tuple[str, ...] = BLOWS
) -> tuple[dict[str, object], int]:
    """Both tenants' losses and final weights, and how many kills there were."""
    server.start()
    server.wait_ready()
    tenants = {sdk: Tenant(sdk, server.url, STEPS) for sdk in SDKS}
    done = _harm(server, list(tenants.values()), kills, blows)
    found: dict[str, object] = {sdk: tenant.losses() for sdk, tenant in tenants.items()}
    for sdk in SDKS:
        found[f"{sdk} weights"] = server.weights_digest(f"final-{sdk}")
    return found, done


def _harm(server: ServerProcess, tenants: list[Tenant], kills: int, blows: tuple[str, ...]) -> int:
    """Kill engines, the server or both at random moments, with some progress in between: what
    keeps dying of the same operation is meant to give that operation up."""
    dice, done = random.Random(11), 0
    while done < kills and any(tenant.running for tenant in tenants):
        seen = sum(tenant.steps for tenant in tenants)
        while sum(t.steps for t in tenants) == seen and any(t.running for t in tenants):
            time.sleep(0.01)
        time.sleep(dice.random() * 0.1)
        what = blows[done % len(blows)]
        if what == "one engine":
            server.kill_one_engine(dice)
        if what == "roll":
            server.restart_engines()
        if what in ("engine", "both"):
            server.kill_engine()
        if what in ("server", "both"):
            server.kill()
            server.start()
            server.wait_ready()
        done += 1
    return done


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_guarantee_10_kills_change_no_number_and_raise_nothing(tmp_path: Path, model: str) -> None:
    """`kill -9` of engine, server or both during a run of two tenants, one with the official
    client, one with ours: losses and final weights equal the undisturbed run bit for bit."""
    folder = resolve(model, default_cache(os.environ), os.environ).folder
    calm = ServerProcess(tmp_path / "calm", folder, snapshot_steps=4)
    stormy = ServerProcess(tmp_path / "stormy", folder, snapshot_steps=4)
    try:
        expected, _ = _run(calm, kills=0)
        found, kills = _run(stormy, KILLS)
    finally:
        for server in (calm, stormy):
            server.end()
    print(f"{kills} kills in {STEPS} steps of two tenants")
    assert kills == KILLS
    assert found == expected


def test_guarantee_10_holds_with_two_engines_that_are_killed_and_restarted(
    tmp_path: Path, tiny_llama: Path
) -> None:
    """`kill -9` of either engine, of the server with both, and a rolling restart: what one engine
    computes undisturbed is what comes out, bit for bit, with both clients."""
    calm = ServerProcess(tmp_path / "calm", tiny_llama, snapshot_steps=4)
    stormy = ServerProcess(tmp_path / "stormy", tiny_llama, snapshot_steps=4, engines=2)
    try:
        expected, _ = _run(calm, kills=0)
        found, kills = _run(stormy, KILLS, ("one engine", "both", "one engine", "roll"))
    finally:
        for server in (calm, stormy):
            server.end()
    assert kills == KILLS
    assert found == expected
