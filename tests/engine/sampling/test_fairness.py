"""No lane stops another: not with sequences, not with pages, not with prompts or what is asked of
them. Counted in steps and tokens."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from support.sampling import make_sampler, prompt_of, results_of, sample, tokens_of
from tinkex.engine.messages import Done, Progress, Sample
from tinkex.engine.sampling.scheduling.scheduler import Scheduler
from tinkex.engine.sampling.scheduling.shares import Pacing, Shares


def steps_until(sampler: Any, op: str, most: int = 500) -> int:
    """How many steps pass until `op` is answered."""
    for count in range(1, most + 1):
        if any(isinstance(event, Done) and event.op == op for event in sampler.step()):
            return count
    raise AssertionError(f"{op} was not answered in {most} steps")


def short(op: str = "short", lane: str = "b") -> Sample:
    return sample(op, prompt_of(9, 5), max_tokens=1, lane=lane)


def test_a_short_sample_overtakes_another_lanes_long_ones_within_one_step() -> None:
    sampler = make_sampler(rows=4, step_tokens=16)
    for number in range(4):
        long = sample(
            f"long{number}", prompt_of(number, 10), num_samples=8, max_tokens=900, lane="a"
        )
        sampler.submit(long)
    for _ in range(20):
        sampler.step()
    sampler.submit(short())
    assert steps_until(sampler, "short") == 1


def test_a_lane_that_holds_every_page_gives_way_within_one_step() -> None:
    sampler = make_sampler(pages=32, rows=64, step_tokens=64, max_context=512)
    longs = [
        sample(f"long{n}", prompt_of(n, 100), num_samples=4, max_tokens=150, lane="a", seed=n)
        for n in range(3)
    ]
    for long in longs:
        sampler.submit(long)
    while sampler.pool.available > 2:
        sampler.step()
    sampler.submit(sample("short", prompt_of(9, 40), max_tokens=1, lane="b"))
    assert steps_until(sampler, "short") == 1
    assert sampler.scheduler.preemptions > 0
    found: dict[str, Any] = {}
    while sampler.busy:
        found |= {event.op: event.result for event in sampler.step() if isinstance(event, Done)}
    alone = results_of(make_sampler(), *longs)
    assert [tokens_of(found[long.op]) for long in longs] == [tokens_of(each) for each in alone]


def test_a_short_prompt_overtakes_another_lanes_scored_ones_within_one_step() -> None:
    sampler = make_sampler(step_tokens=16)
    asks = {"prompt_logprobs": True, "topk_prompt_logprobs": 20}
    for number in range(8):
        sampler.submit(sample(f"p{number}", prompt_of(number, 300), asks=asks, lane="a"))
    for _ in range(3):
        sampler.step()
    sampler.submit(short())
    assert steps_until(sampler, "short") == 1


def test_a_lane_that_comes_back_again_and_again_is_not_always_first() -> None:
    sampler = make_sampler(step_tokens=16)
    sampler.submit(sample("long", prompt_of(1, 400), max_tokens=1, lane="a"))
    steps = 0
    while sampler.busy and steps < 400:
        if not any(op.startswith("next") for op in sampler._requests):
            fresh = prompt_of(100 + steps, 16)
            sampler.submit(sample(f"next{steps}", fresh, max_tokens=1, lane="b"))
        steps += 1
        if any(isinstance(event, Done) and event.op == "long" for event in sampler.step()):
            break
    assert steps <= 2 * 400 / 16 + 2, "half of the tokens at least were the long prompt's"


def test_rows_are_shared_equally_by_lanes_that_want_more() -> None:
    sampler = make_sampler(rows=6, step_tokens=64)
    for lane, samples in (("a", 16), ("b", 4), ("c", 1)):
        sampler.submit(
            sample(
                lane, prompt_of(1, 8), num_samples=samples, max_tokens=500, lane=lane, stream=True
            )
        )
    for _ in range(5):
        sampler.step()
    drawn: Counter[str] = Counter()
    for _ in range(60):
        for event in sampler.step():
            assert isinstance(event, Progress)
            drawn[event.op] += len(event.tokens)
    assert drawn == {"a": 180, "b": 120, "c": 60}


def test_the_oldest_sequence_ends_though_it_is_larger_than_its_lanes_part() -> None:
    sampler = make_sampler(pages=16, rows=8, step_tokens=64, max_context=256)
    sampler.submit(sample("large", prompt_of(1, 180), max_tokens=60, lane="a"))
    for steps in range(400):
        waiting = [op for op in sampler._requests if op.startswith("b")]
        for number in range(4 - len(waiting)):
            prompt = prompt_of(1000 + 4 * steps + number, 40)
            sampler.submit(sample(f"b{steps}.{number}", prompt, max_tokens=20, lane="b"))
        if any(isinstance(event, Done) and event.op == "large" for event in sampler.step()):
            return
    raise AssertionError("the large sequence never ended")


def test_where_places_are_few_another_lanes_youngest_gives_its_own_up() -> None:
    sampler = make_sampler(rows=4, step_tokens=64)
    sampler.scheduler = Scheduler(sampler.pool, 4, 64, places=4)
    for number in range(8):
        sampler.submit(sample(f"long{number}", prompt_of(number, 6), max_tokens=60, lane="a"))
    for _ in range(5):
        sampler.step()
    sampler.submit(short())
    assert steps_until(sampler, "short") == 1
    assert sampler.scheduler.preemptions == 1
    while sampler.busy:
        sampler.step()
        assert len(sampler.scheduler.active) <= 4


def test_draws_for_prompt_tokens_are_work_and_come_in_slices() -> None:
    sampler = make_sampler(step_tokens=64)
    sampler.submit(
        sample("asked", prompt_of(1, 10), max_tokens=1, asks={"prompt_alt_tokens_k": 31})
    )
    assert steps_until(sampler, "asked") == 5, "two prompt tokens a step"


# ---- the accounts themselves


def test_prompts_owe_the_time_for_which_they_held_others_up() -> None:
    pacing = Pacing()
    assert not pacing.holds_up("a", {"b"})
    pacing.planned({"a": 255}, {"b"})
    pacing.took(1.0)
    for _ in range(4):
        assert pacing.holds_up("a", {"b"})
        assert not pacing.holds_up("a", {"a"}), "nobody else waits for its prompt"
        assert not pacing.holds_up("c", {"b"})
        pacing.planned({}, {"b"})
        pacing.took(0.25)
    assert not pacing.holds_up("a", {"b"})


def test_a_debt_is_paid_while_prompts_of_others_go_on() -> None:
    pacing = Pacing()
    pacing.planned({"a": 255}, {"b"})
    pacing.took(1.0)
    for lane in "cdef":
        assert pacing.holds_up("a", {"b"})
        pacing.planned({lane: 10}, {"b"})
        pacing.took(0.25)
    assert not pacing.holds_up("a", {"b"})


def test_a_prompt_that_held_nobody_up_owes_nothing() -> None:
    pacing = Pacing()
    pacing.planned({"a": 255}, {"a"})
    pacing.took(1.0)
    assert not pacing.holds_up("a", {"b"})


def test_a_sample_beside_long_prompts_of_another_lane_takes_twice_its_time() -> None:
    """On a clock where a step takes a hundredth of a second, and as much for each 4 tokens."""
    sampler = make_sampler(step_tokens=64, max_context=1024)
    for number in range(12):
        sampler.submit(sample(f"p{number}", prompt_of(number, 900), max_tokens=1, lane="a"))
    sampler.step()
    sampler.took(0.17)
    sampler.submit(sample("b", prompt_of(99, 4), max_tokens=100, lane="b"))
    now = alone = 0.0
    while "b" in sampler._requests:
        before = sampler.prompt_tokens
        sampler.step()
        took = 0.01 * (1 + (sampler.prompt_tokens - before) / 4)
        sampler.took(took)
        now, alone = now + took, alone + 0.01
    assert "p11" in sampler._requests
    assert now <= 2.2 * alone


@pytest.mark.parametrize("pause", [False, True])
def test_a_lane_that_comes_back_is_level_with_the_others(pause: bool) -> None:
    shares = Shares()
    shares.waiting(["a"])
    shares.charge("a", 1000)
    if pause:
        shares.waiting([])
    shares.waiting(["a", "b"])
    assert shares.first(["a", "b"]) == "b"
    shares.charge("b", 1)
    assert shares.first(["a", "b"]) == "a"
