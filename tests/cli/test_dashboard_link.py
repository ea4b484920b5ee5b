"""`tinkex dashboard`: a link to the home's own server, for who owns its files."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import CommandLine
from support.json_shape import mismatches, shapes
from support.served import served
from tinkex.server.core import Core


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    """A server of this home in a thread, with its socket."""
    started, stop, found = threading.Event(), threading.Event(), list[Core]()

    async def serve() -> None:
        async with served(tmp_path / "home") as api:
            found.append(api.core)
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(30)
    yield found[0]
    stop.set()
    thread.join(30)


def test_the_link_opens_once_and_is_printed(core: Core, tmp_path: Path) -> None:
    ran = CommandLine()("dashboard", "--home", str(tmp_path / "home"), "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert mismatches(found, shapes()["dashboard"]) == []
    address, _, token = found["url"].partition("/#invitation=")
    assert address == core.settings.address
    assert core.invitations.redeem(token)
    assert not core.invitations.redeem(token)


def test_without_a_server_it_says_what_to_type(tmp_path: Path) -> None:
    ran = CommandLine()("dashboard", "--home", str(tmp_path / "none"))
    assert ran.code == 1
    assert "Next: tinkex serve, or --home FOLDER" in ran.err
    assert not (tmp_path / "none").exists()
