"""A result is asked for until there is one, or until asking again cannot help."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.clients import QUICK
from tinkex.client.api.api import Api
from tinkex.client.concurrency.budgets import ByteBudget
from tinkex.client.errors import FutureRetrievalError, RequestFailedError, RetryableException
from tinkex.client.events.bus import EventBus
from tinkex.client.http import HttpResponse, TransportError
from tinkex.client.session.polling import Poller, ResultKind
from tinkex.client.settings.config import Config
from tinkex.client.settings.queue_state import QueueState
from tinkex.client.transport.scripted import Answer, ScriptedTransport
from tinkex.types import RequestErrorCategory
from tinkex.wire.limits import HEADER_REQUEST_ITERATION, METADATA_STATUS, PENDING_TYPE

KIND: ResultKind[int] = ResultKind("Number", lambda value: int(value["number"]))
RESULT = {"number": 7}


class Observer:
    def __init__(self) -> None:
        self.seen: list[tuple[QueueState, str | None]] = []

    def on_queue_state_change(self, state: QueueState, reason: str | None = None) -> None:
        self.seen.append((state, reason))


def says(value: Any, status: int = 200) -> HttpResponse:
    return HttpResponse(status, {"content-type": "application/json"}, json.dumps(value).encode())


def polled(*answers: Answer) -> tuple[Poller, ScriptedTransport, ByteBudget]:
    transport, budget = ScriptedTransport(answers), ByteBudget(1000)
    values: dict[str, Any] = {"api_key": "tml-k", "timings": QUICK, "events": EventBus()}
    config = Config.resolve(base_url="http://h", environ={}, **values)
    return Poller(Api(config, transport), budget), transport, budget


def bodies(transport: ScriptedTransport) -> list[dict[str, Any]]:
    return [json.loads(request.body or b"") for request in transport.requests]


async def test_what_is_pending_is_asked_again_and_its_reason_is_told() -> None:
    waits = {"type": PENDING_TYPE, "queue_state": "paused_capacity", "queue_state_reason": "full"}
    poller, transport, _ = polled(says(waits), says(waits, 408), says(RESULT))
    observer = Observer()
    assert await poller.result("r", KIND, observer=observer) == 7
    assert observer.seen == [(QueueState.PAUSED_CAPACITY, "full")] * 2
    rounds = [request.headers[HEADER_REQUEST_ITERATION] for request in transport.requests]
    assert rounds == ["0", "1", "2"]


async def test_a_large_result_is_announced_and_then_fetched_within_the_budget() -> None:
    announced = says({"status": METADATA_STATUS, "response_payload_size": 600})
    used: list[int] = []

    def script(_: Any) -> Answer:
        used.append(budget.used)
        return announced if len(used) == 1 else says(RESULT)

    poller, transport, budget = polled()
    transport._script = script
    assert await poller.result("r", KIND) == 7
    assert used == [0, 600]
    assert budget.used == 0
    assert [body["allow_metadata_only"] for body in bodies(transport)] == [True, False]


async def test_a_size_that_is_known_saves_the_question() -> None:
    poller, transport, _ = polled(says(RESULT))
    assert await poller.result("r", KIND, announced_size=10) == 7
    assert [body["allow_metadata_only"] for body in bodies(transport)] == [False]


async def test_errors_of_the_server_and_of_the_way_are_outlasted() -> None:
    busy, cut = says({}, 503), TransportError("connection reset")
    poller, transport, _ = polled(busy, busy, cut, cut, says(RESULT))
    assert await poller.result("r", KIND) == 7
    assert len(transport.requests) == 5


async def test_a_failure_that_the_server_reports_is_raised_with_its_category() -> None:
    poller, _, _ = polled(says({"error": "no such token", "category": "user"}))
    with pytest.raises(RequestFailedError, match="no such token") as caught:
        await poller.result("r", KIND)
    assert caught.value.category is RequestErrorCategory.User


async def test_a_promise_that_was_lost_may_be_made_again() -> None:
    poller, _, _ = polled(says({"detail": "gone"}, 410))
    with pytest.raises(RetryableException, match="submit it again"):
        await poller.result("r", KIND)


@pytest.mark.parametrize(
    "damaged", [HttpResponse(200, {}, b"{"), says({"other": 1}), says({"detail": "?"}, 400)]
)
async def test_answers_that_make_no_sense_are_asked_for_again_but_not_for_ever(
    damaged: HttpResponse,
) -> None:
    allowed = QUICK.poll_bad_requests
    poller, _, _ = polled(*[damaged] * allowed, says(RESULT))
    assert await poller.result("r", KIND) == 7
    poller, transport, _ = polled(*[damaged] * (allowed + 1), says(RESULT))
    with pytest.raises(FutureRetrievalError, match="Number request r cannot be retrieved"):
        await poller.result("r", KIND)
    assert len(transport.requests) == allowed + 1


async def test_what_asking_again_cannot_change_is_raised_at_once() -> None:
    poller, transport, _ = polled(says({"detail": "whose?"}, 404))
    with pytest.raises(FutureRetrievalError):
        await poller.result("r", KIND)
    assert len(transport.requests) == 1
