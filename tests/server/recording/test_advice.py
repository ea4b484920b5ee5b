"""Advice: said when something is wrong, with numbers and what to do; silent when nothing is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tinkex.server.recording.advice import (
    RunFacts,
    about_disk,
    about_engine,
    about_limit,
    about_run,
)
from tinkex.server.storage.database.points import Point


def points(count: int = 20, **metrics: list[float] | float) -> list[Point]:
    """A history whose metrics are constant, or end with the values given."""
    found = []
    for n in range(count):
        values = {"step_s": 1.0}
        for name, given in metrics.items():
            series = given if isinstance(given, list) else [given] * count
            if n >= count - len(series):
                values[name] = series[n - count + len(series)]
        found.append(Point(n + 1, n, n + 1, 1000.0 + n, True, values))
    return found


HEALTHY = RunFacts("r", "alice", 1020.0, 0.0, points(grad_norm=1.0, sampler_gap=0.001))


def kinds(facts: RunFacts) -> list[str]:
    return [advice.kind for advice in about_run(facts)]


def test_a_healthy_run_gets_no_advice() -> None:
    assert kinds(HEALTHY) == []
    assert kinds(replace(HEALTHY, recent=[])) == []
    assert kinds(replace(HEALTHY, idle_s=100.0)) == []


def test_a_norm_that_explodes_is_named_with_its_step_and_what_it_was() -> None:
    facts = replace(HEALTHY, recent=points(grad_norm=[1.2] * 19 + [48.0]))
    (advice,) = about_run(facts)
    assert advice.kind == "exploding_norm"
    assert "48 in step 20" in advice.text
    assert "1.2" in advice.text
    assert "grad_clip_norm" in advice.text
    assert (advice.run, advice.tenant, advice.since) == ("r", "alice", 1019.0)
    assert kinds(replace(HEALTHY, recent=points(grad_norm=[1.0] * 19 + [9.0]))) == []
    assert kinds(replace(HEALTHY, recent=points(4, grad_norm=[1.0, 1.0, 1.0, 99.0]))) == []


def test_a_sampler_gap_that_grows_is_named() -> None:
    growing = points(sampler_gap=[0.01] * 10 + [0.08] * 10)
    assert kinds(replace(HEALTHY, recent=growing)) == ["sampler_gap"]
    assert kinds(replace(HEALTHY, recent=points(sampler_gap=[0.0001] * 10 + [0.002] * 10))) == []
    assert kinds(replace(HEALTHY, recent=points(sampler_gap=0.05))) == []


def test_groups_that_teach_nothing_are_named() -> None:
    facts = replace(HEALTHY, recent=points(zero_advantages=0.75))
    (advice,) = about_run(facts)
    assert advice.kind == "zero_advantages"
    assert "75%" in advice.text
    assert kinds(replace(HEALTHY, recent=points(zero_advantages=0.3))) == []


@pytest.mark.parametrize(("pace", "idle", "stalled"), [(1.0, 121, True), (60.0, 600, False)])
def test_a_client_is_stalled_by_its_own_pace(pace: float, idle: float, stalled: bool) -> None:
    facts = replace(HEALTHY, idle_s=idle, recent=points(step_s=pace))
    assert kinds(facts) == (["stalled_client"] if stalled else [])


@pytest.mark.parametrize(
    ("silent", "said"),
    [
        (50.0, "may hang or be waiting"),
        (70.0, "has ended without closing its client, or is cut off"),
        (1000.0, None),
    ],
)
def test_a_script_that_is_gone_does_not_hang_and_is_not_spoken_of_for_long(
    silent: float, said: str | None
) -> None:
    facts = replace(HEALTHY, idle_s=1100.0, silent_s=silent, recent=points(step_s=1.0))
    texts = [advice.text for advice in about_run(facts)]
    assert len(texts) == (said is not None)
    assert all(said is not None and said in text for text in texts)


def test_calls_that_keep_failing_are_quoted_without_control_characters() -> None:
    facts = replace(HEALTHY, failures=3, failing_since=5.0, failure="weights:\x1b[31m too few" * 40)
    (advice,) = about_run(facts)
    assert (advice.kind, advice.severity, advice.since) == ("failing_calls", "error", 5.0)
    assert "last 3 calls" in advice.text
    assert advice.text.isprintable()
    assert len(advice.text) < 400
    assert kinds(replace(HEALTHY, failures=1)) == []


def test_a_run_that_cannot_go_on_says_why() -> None:
    (advice,) = about_run(replace(HEALTHY, broken="its snapshot is damaged"))
    assert advice.severity == "error"
    assert "its snapshot is damaged" in advice.text


def test_a_limit_that_is_reached_says_how_to_raise_it() -> None:
    advice = about_limit("samples_per_tenant", 8192, 8192, "alice", 7.0)
    assert advice is not None
    assert advice.tenant == "alice"
    assert "--limit samples_per_tenant=" in advice.text
    assert about_limit("samples_per_tenant", 7000, 8192, "alice", 7.0) is None


def test_an_engine_and_a_disk_in_trouble_are_everybodys_business() -> None:
    engine = about_engine("m", "the engine stopped (signal 9)", 3, 7.0)
    assert engine.tenant is None
    assert "died 3 times" in engine.text
    assert "not lost" in engine.text
    assert "2.0 GiB" in about_disk(2 * 2**30, 7.0).text
