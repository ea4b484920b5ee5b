"""Sessions, runs, checkpoints and samplers behave as promised in whatever order they are used.

The short form runs with the suite, always the same. `TINKEX_LONG=1` walks on for `TINKEX_MINUTES`
(15) from `TINKEX_SEED`, with more harm on the way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from lifecycle.machine import walking
from lifecycle.truth import Truth
from support.server_process import ServerProcess
from tinkex.server.engines.model_sources import default_cache, resolve

LONG = bool(os.environ.get("TINKEX_LONG"))
FIRST = int(os.environ.get("TINKEX_SEED", "0"))
MINUTES = float(os.environ.get("TINKEX_MINUTES", "15"))
WALKS, STEPS = (5, 60) if LONG else (24, 40)
SETTINGS = settings(
    max_examples=WALKS,
    stateful_step_count=STEPS,
    deadline=None,
    database=None,
    derandomize=False,
    phases=(Phase.generate, Phase.shrink) if LONG else (Phase.generate,),
    suppress_health_check=list(HealthCheck),
    verbosity=Verbosity.normal,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = resolve("tinkex/tiny-llama", default_cache(os.environ), os.environ).folder
    server = ServerProcess(
        tmp_path_factory.mktemp("walks") / "home",
        model,
        snapshot_steps=3,
        timings={"restart_backoff_s": [0.1]},
    )
    server.start()
    server.wait_ready()
    yield server
    server.end()


@pytest.mark.slow
def test_every_walk_keeps_the_promises(server: ServerProcess) -> None:
    truth = Truth(server.home)
    end, number = time.monotonic() + 60 * MINUTES, FIRST
    while True:
        machine = seed(number)(walking(server, truth, harm=3 if LONG else 1))
        run_state_machine_as_test(machine, settings=SETTINGS)
        number += 1
        if not LONG or time.monotonic() > end:
            break
    print(f"{(number - FIRST) * WALKS} walks from seed {FIRST}, {truth.repeats} repeats compared")
    assert truth.repeats > 20, "the walks met too few histories twice to prove anything"
