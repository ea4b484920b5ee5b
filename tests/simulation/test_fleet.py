"""Eight engines and far more runs than they take at once: all are used, nobody starves."""

from __future__ import annotations

from simulation.fleet import CALL_S, played


def test_eight_engines_share_the_work_and_one_run_waits_no_longer_than_another_tenants_many() -> (
    None
):
    found = played(8, {"large": 88, "small": 1}, steps=2)
    assert min(found.busy) > 0.5 * max(found.busy), "no engine is left out"
    assert found.median("small") <= found.median("large") + CALL_S
    assert found.moves <= 8, "runs are placed well enough not to be moved about"
