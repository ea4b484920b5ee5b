"""Guarantee 10: whichever process dies, whenever: the same numbers, and no client notices.

The short form runs with the suite. `TINKEX_LONG=1` trains 200 steps with at least 100 kills.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from guarantees.tenant import SDKS, Numbers, Tenant, undisturbed
from support.server_process import ServerProcess
from tinkex.server.engines.model_sources import default_cache, resolve

LONG = bool(os.environ.get("TINKEX_LONG"))
STEPS, KILLS = (200, 100) if LONG else (10, 3)
MODELS = ("tinkex/tiny-llama", "tinkex/tiny-qwen3-moe", "tinkex/tiny-qwen3.5")
"""One of each kind of block. The server calls all of them by the first name."""
BLOWS = ("engine", "server", "both")


def _run(server: ServerProcess, blows: tuple[str, ...] = BLOWS) -> tuple[dict[str, Numbers], int]:
    """Both tenants' numbers, and how many kills there were."""
    server.start()
    server.wait_ready()
    tenants = {sdk: Tenant(sdk, server.url, STEPS) for sdk in SDKS}
    try:
        done = _harm(server, list(tenants.values()), KILLS, blows)
        losses = {sdk: tenant.losses() for sdk, tenant in tenants.items()}
    finally:
        for tenant in tenants.values():
            tenant.end()
    return {sdk: (losses[sdk], server.weights_digest(f"final-{sdk}")) for sdk in SDKS}, done


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


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Numbers]:
    """What an undisturbed tenant gets of a model, computed once."""

    @cache
    def numbers(folder: Path) -> Numbers:
        home = tmp_path_factory.mktemp("calm") / "home"
        return undisturbed(ServerProcess(home, folder, snapshot_steps=4), STEPS)

    return numbers


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_guarantee_10_kills_change_no_number_and_raise_nothing(
    tmp_path: Path, model: str, calm: Callable[[Path], Numbers]
) -> None:
    """`kill -9` of engine, server or both during a run of two tenants, one with the official
    client, one with ours: losses and final weights equal the undisturbed run bit for bit."""
    folder = resolve(model, default_cache(os.environ), os.environ).folder
    stormy = ServerProcess(tmp_path / "stormy", folder, snapshot_steps=4)
    try:
        found, kills = _run(stormy)
    finally:
        stormy.end()
    print(f"{kills} kills in {STEPS} steps of two tenants")
    assert kills == KILLS
    assert found == dict.fromkeys(SDKS, calm(folder))


def test_guarantee_10_holds_with_two_engines_that_are_killed_and_restarted(
    tmp_path: Path, tiny_llama: Path, calm: Callable[[Path], Numbers]
) -> None:
    """`kill -9` of either engine, of the server with both, and a rolling restart: what one engine
    computes undisturbed is what comes out, bit for bit, with both clients."""
    stormy = ServerProcess(tmp_path / "stormy", tiny_llama, snapshot_steps=4, engines=2)
    try:
        found, kills = _run(stormy, ("one engine", "both", "roll"))
    finally:
        stormy.end()
    assert kills == KILLS
    assert found == dict.fromkeys(SDKS, calm(tiny_llama))
