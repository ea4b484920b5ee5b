"""Retry arithmetic, and the handler that repeats failed samples."""

import asyncio
import time

import pytest

from tinkex.client.api import retry
from tinkex.client.api.retry import RetryConfig, RetryHandler
from tinkex.client.errors import APIConnectionError, RetryableException


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
