"""A server takes the open files it may have, and says when they are too few."""

from __future__ import annotations

import logging
import resource
import socket
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.live_server import live_server
from tinkex.server.hosting import open_files

TINY = "tinkex/tiny-llama"


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int]]:
    """The machine's limits, to be set by a test."""
    now = {"limits": (1024, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: now["limits"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, given: now.update(limits=given))
    return now


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1024, 20_000), (20_000, 20_000)),
        ((1024, 10**6), (65_536, 10**6)),
        ((1024, resource.RLIM_INFINITY), (65_536, resource.RLIM_INFINITY)),
        ((100_000, 10**6), (100_000, 10**6)),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_it_helps(
    limits: dict[str, tuple[int, int]],
    caplog: pytest.LogCaptureFixture,
    before: tuple[int, int],
    after: tuple[int, int],
) -> None:
    limits["limits"] = before
    assert open_files.allow() == after[0]
    assert limits["limits"] == after
    assert caplog.text == ""


def test_too_low_a_hard_limit_is_said(
    limits: dict[str, tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert open_files.allow() == 4096
    assert "4096 open files" in caplog.text
    assert "5000 connections" in caplog.text


@pytest.mark.slow
def test_serve_takes_more_connections_than_the_soft_limit_it_was_started_with(
    tmp_path: Path,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1024 or hard < 2048:
        pytest.skip(f"this machine allows {hard} open files")
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        try:
            server = stack.enter_context(live_server(tmp_path / "home", "--model", TINY))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        host, port = server.url.removeprefix("http://").split(":")
        for _ in range(400):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
        with urllib.request.urlopen(f"{server.url}/api/v1/healthz", timeout=60) as answer:
            assert answer.status == 200
