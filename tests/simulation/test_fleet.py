"""Eight engines and far more runs than they take at once: all are used, nobody starves."""

from __future__ import annotations

from simulation.fleet import CALL_S, played
from tinkex.server.settings import Terms


def test_eight_engines_share_the_work_and_one_run_waits_no_longer_than_another_tenants_many() -> (
    None
):
    found = played(8, {"large": 88, "small": 1}, steps=2)
    assert min(found.busy) > 0.5 * max(found.busy), "no engine is left out"
    assert found.median("small") <= found.median("large") + CALL_S
    assert found.moves <= 8, "runs are placed well enough not to be moved about"


def test_who_is_interactive_hardly_waits_for_a_batch_that_gets_its_work_done_all_the_same() -> None:
    runs = {"demo": 1, "nightly": 12}
    equal = played(1, runs, steps=4, in_flight=2)
    terms = {"demo": Terms(priority="interactive"), "nightly": Terms(priority="batch")}
    found = played(1, runs, steps=4, terms=terms, in_flight=2)
    assert found.median("demo") <= 3 * CALL_S
    assert found.median("demo") < equal.median("demo")
    assert len(found.waits["nightly"]) == len(equal.waits["nightly"]), "all of it"
