"""What the clients of one session share: opened once, closed for all, useless after a fork."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.clients import quick_config
from tinkex.client.errors import ClientClosedError
from tinkex.client.http import HttpRequest, HttpResponse
from tinkex.client.session.holder import HolderKind, InternalClientHolder
from tinkex.client.transport.scripted import Answer, ScriptedTransport
from tinkex.wire import routes

SESSION = {"type": "create_session", "session_id": "s-1"}
Make = Callable[..., tuple[InternalClientHolder, ScriptedTransport]]


def answer(request: HttpRequest) -> Answer:
    body = SESSION if request.url.endswith(routes.CREATE_SESSION) else {}
    return HttpResponse(200, {}, json.dumps(body).encode())


def asked(transport: ScriptedTransport) -> Counter[str]:
    return Counter("/api" + each.url.partition("/api")[2] for each in transport.requests)


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[InternalClientHolder] = []

    def holder(script: Any = answer, **options: Any) -> tuple[InternalClientHolder, Any]:
        transport = ScriptedTransport(script)
        config = quick_config("http://h", transport=lambda _: transport)
        made.append(InternalClientHolder(config, **options))
        return made[-1], transport

    yield holder
    for each in made:
        each.close()


def test_all_who_ask_at_once_share_one_session(make: Make) -> None:
    holder, transport = make()

    async def all_ready() -> None:
        await asyncio.gather(*(holder.ready() for _ in range(20)))

    holder.submit(all_ready()).result(60)
    assert holder.session_id == "s-1"
    assert asked(transport)[routes.CREATE_SESSION] == 1
    assert asked(transport)[routes.CLIENT_CONFIG] == 1


def test_a_failed_opening_is_tried_again_by_the_next_who_asks(make: Make) -> None:
    refused = [True]

    def script(request: HttpRequest) -> Answer:
        if request.url.endswith(routes.CREATE_SESSION) and refused:
            refused.clear()
            return HttpResponse(422, {}, b'{"detail": "not yet"}')
        return answer(request)

    holder, _ = make(script)
    with pytest.raises(Exception, match="not yet"):
        holder.submit(holder.ready()).result(60)
    assert not holder.has_session
    holder.submit(holder.ready()).result(60)
    assert holder.session_id == "s-1"


def test_without_a_session_none_is_opened_and_asking_for_it_says_so(make: Make) -> None:
    holder, transport = make(kind=HolderKind.SESSIONLESS)
    holder.submit(holder.ready()).result(60)
    assert routes.CREATE_SESSION not in asked(transport)
    with pytest.raises(ClientClosedError, match="no session"):
        _ = holder.session_id


def test_closing_ends_what_waits_and_refuses_what_comes(make: Make) -> None:
    holder, transport = make()
    closed: list[str] = []

    async def on_close() -> None:
        closed.append("told before the connections go" if not transport.closed else "too late")

    async def forever() -> None:
        await holder.ready()
        await asyncio.Event().wait()

    holder.on_close(on_close)
    waiting = holder.submit(forever())
    holder.submit(holder.ready()).result(60)
    holder.close()
    assert waiting.cancelled()
    assert closed == ["told before the connections go"]
    assert transport.closed
    with pytest.raises(ClientClosedError, match="closed"):
        holder.submit(holder.ready())
    holder.close()


def test_a_request_nobody_waits_for_is_taken_back_on_the_server(make: Make) -> None:
    holder, transport = make()
    holder.submit(holder.ready()).result(60)

    async def cancel() -> None:
        holder.cancel_future("r-9")
        await asyncio.gather(*holder._side_tasks)

    holder.submit(cancel()).result(60)
    last = transport.requests[-1]
    assert last.url.endswith(routes.CANCEL_FUTURE)
    assert json.loads(last.body or b"") == {"request_id": "r-9"}


def test_in_a_child_process_it_says_whose_it_is(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, _ = make()
    monkeypatch.setattr(holder, "_pid", 1)
    assert holder.forked
    with pytest.raises(ClientClosedError, match="process that created it"):
        holder.submit(holder.ready())
    monkeypatch.undo()
