"""Budgets, breaker, limiter, turns and retry arithmetic: the small parts that everything uses."""

import asyncio
import time

import pytest

from tinkex.client import retry
from tinkex.client.breaker import BreakerConfig, CircuitBreaker
from tinkex.client.budgets import ByteBudget
from tinkex.client.errors import APIConnectionError, RetryableException
from tinkex.client.limiter import RateLimiter, shared_limiter
from tinkex.client.retry import RetryConfig, RetryHandler
from tinkex.client.submission import Turnstile

# ---- byte budgets


async def test_a_budget_admits_while_its_balance_is_not_negative() -> None:
    budget = ByteBudget(10)
    await budget.take(25)  # one oversize item always passes
    waiting = asyncio.create_task(budget.take(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    budget.give_back(25)
    await waiting
    assert budget.used == 1


async def test_a_budget_serves_in_order_and_forgets_who_left() -> None:
    budget = ByteBudget(1)
    order: list[int] = []

    async def use(number: int) -> None:
        async with budget.holding(5):
            order.append(number)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(use(i)) for i in range(5)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 1, 3, 4]
    assert budget.used == 0


# ---- circuit breaker


def test_the_circuit_opens_after_consecutive_failures_and_probes_once() -> None:
    breaker = CircuitBreaker(BreakerConfig(failures=2, cooldown=0.02))
    assert breaker.refusal() is None
    assert breaker.failed() is False
    breaker.succeeded()
    assert breaker.failed() is False
    assert breaker.failed() is True
    assert (breaker.refusal() or 0) > 0
    time.sleep(0.03)
    assert breaker.refusal() is None, "one probe may pass"
    assert breaker.refusal() is not None, "and only one"
    assert breaker.failed() is False
    assert breaker.is_open
    time.sleep(0.03)
    assert breaker.refusal() is None
    assert breaker.succeeded() is True
    assert breaker.refusal() is None


@pytest.mark.parametrize("bad", [{"failures": 0}, {"cooldown": -1.0}])
def test_a_breaker_that_cannot_work_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        BreakerConfig(**bad)  # type: ignore[arg-type]


# ---- limiter


async def test_a_limiter_waits_only_when_held() -> None:
    limiter = RateLimiter()
    assert await limiter.wait() == 0.0
    limiter.hold(0.02)
    limiter.hold(0.001)  # a shorter wish does not shorten the longer one
    assert await limiter.wait() > 0.01


def test_limiters_are_shared_by_url_and_key_only() -> None:
    one = shared_limiter("http://a", "tml-k")
    assert shared_limiter("http://a", "tml-k") is one
    assert shared_limiter("http://b", "tml-k") is not one
    assert shared_limiter("http://a", "tml-l") is not one


# ---- turns


async def test_turns_follow_the_numbers_not_the_arrivals() -> None:
    turns = Turnstile(1)
    numbers = [turns.draw(), turns.draw(3), turns.draw()]
    assert [list(n) for n in numbers] == [[1], [2, 3, 4], [5]]
    entered: list[int] = []

    async def enter(position: int) -> None:
        async with turns.turn(numbers[position]):
            entered.append(position)
            await asyncio.sleep(0)

    await asyncio.gather(enter(2), enter(1), enter(0))
    assert entered == [0, 1, 2]


async def test_whoever_fails_or_leaves_lets_the_next_one_in() -> None:
    turns = Turnstile(1)
    first, second, third = turns.draw(), turns.draw(), turns.draw()

    async def waits(numbers: range) -> str:
        async with turns.turn(numbers):
            return "in"

    cancelled = asyncio.create_task(waits(second))
    last = asyncio.create_task(waits(third))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(ZeroDivisionError):
        async with turns.turn(first):
            raise ZeroDivisionError
    assert await last == "in"


# ---- retry arithmetic


@pytest.mark.parametrize("code", [408, 409, 429, 500, 503, 599])
def test_statuses_that_may_pass(code: int) -> None:
    assert retry.is_retryable_status_code(code)


@pytest.mark.parametrize("code", [200, 400, 401, 402, 404, 410, 422, 600])
def test_statuses_that_will_not(code: int) -> None:
    assert not retry.is_retryable_status_code(code)


@pytest.mark.parametrize(
    ("headers", "delay"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "x", "retry-after": "3"}, 3.0),
        ({"retry-after": "61"}, None),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, None),
        ({}, None),
    ],
)
def test_the_servers_wish_is_read(headers: dict[str, str], delay: float | None) -> None:
    assert retry.retry_delay_from_headers(headers, 60.0) == delay


def test_a_date_in_the_near_future_is_a_delay() -> None:
    from email.utils import formatdate

    delay = retry.retry_delay_from_headers(
        {"retry-after": formatdate(time.time() + 20, usegmt=True)}, 60.0
    )
    assert delay is not None
    assert 15 < delay <= 20


def test_backoff_doubles_up_to_its_limit() -> None:
    assert [retry.backoff(i, 0.5, 10.0) for i in range(6)] == [0.5, 1, 2, 4, 8, 10]
    assert retry.backoff(10_000, 0.5, 10.0) == 10.0
    assert all(0.75 <= retry.jittered(1.0) <= 1.0 for _ in range(100))


# ---- the sampling handler


async def test_the_handler_repeats_what_may_pass_and_nothing_else() -> None:
    handler = RetryHandler(RetryConfig(retry_delay_base=0.0))
    outcomes: list[object] = [APIConnectionError(None), RetryableException("gone"), "done"]

    async def work() -> object:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert await handler.execute(work) == "done"
    outcomes[:] = [ValueError("final")]
    with pytest.raises(ValueError, match="final"):
        await handler.execute(work)


async def test_the_handler_caps_what_is_in_flight() -> None:
    handler = RetryHandler(RetryConfig(max_connections=3))
    now = highest = 0

    async def work() -> None:
        nonlocal now, highest
        now += 1
        highest = max(highest, now)
        await asyncio.sleep(0.001)
        now -= 1

    await asyncio.gather(*[handler.execute(work) for _ in range(20)])
    assert highest == 3


async def test_the_handler_leaves_no_timer_behind() -> None:
    handler = RetryHandler(RetryConfig())

    async def work() -> int:
        return 1

    await handler.execute(work)
    assert handler._watchdog is None


def test_a_retry_config_is_checked_and_hashable() -> None:
    with pytest.raises(ValueError, match="max_connections"):
        RetryConfig(max_connections=0)
    assert hash(RetryConfig()) == hash(RetryConfig())
    assert RetryConfig().progress_timeout == 7200
