"""The event bus: stable names, prefixes, and handlers that cannot hurt."""

import logging

import pytest

from tinkex.client.events import bus as events
from tinkex.client.events.bus import EventBus, attach_logger


def test_names_are_dotted_and_under_one_root() -> None:
    assert len(events.NAMES) > 20
    assert all(name.startswith("tinkex.") and name == name.lower() for name in events.NAMES)


def test_handlers_get_the_events_of_their_prefix_until_they_leave() -> None:
    bus = EventBus()
    seen: list[str] = []
    leave = bus.subscribe(lambda event: seen.append(event.name), "tinkex.http")
    bus.emit(events.HTTP_START, path="/x")
    bus.emit(events.SESSION_START)
    leave()
    bus.emit(events.HTTP_START, path="/y")
    assert seen == [events.HTTP_START]


def test_a_broken_handler_is_reported_once_and_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = EventBus()

    def broken(event: events.Event) -> None:
        raise RuntimeError("handler")

    bus.subscribe(broken)
    with bus.capture() as seen, caplog.at_level(logging.ERROR):
        bus.emit(events.HTTP_START)
        bus.emit(events.HTTP_START)
    assert len(seen) == 2
    assert len(caplog.records) == 1


def test_event_data_holds_no_secret() -> None:
    bus = EventBus()
    with bus.capture() as seen:
        bus.emit(events.HTTP_EXCEPTION, 0.1, error="key tml-123 refused")
    assert "tml-123" not in str(seen[0])
    assert seen[0].duration == 0.1


def test_attach_logger_writes_lines_and_detaches(caplog: pytest.LogCaptureFixture) -> None:
    bus = EventBus()
    detach = attach_logger("tinkex.test", level=logging.INFO, bus=bus)
    with caplog.at_level(logging.INFO, logger="tinkex.test"):
        bus.emit(events.HTTP_STOP, 0.0125, path="/x", status=200)
        bus.emit(events.HTTP_EXCEPTION, path="/x")
        detach()
        bus.emit(events.HTTP_STOP, path="/z")
    assert [r.levelname for r in caplog.records] == ["INFO", "WARNING"]
    assert "duration_ms=12.5" in caplog.text
    assert "path=/x status=200" in caplog.text
