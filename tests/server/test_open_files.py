"""A server takes the open files it may have, and says when they are too few."""

from __future__ import annotations

import logging
import resource

import pytest

from tinkex.server import open_files


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
