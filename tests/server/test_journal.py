"""Promises of the server's log."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from support.logging_state import restored_logging
from tinkex.server.hosting import log_format


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    with restored_logging():
        yield


def test_json_is_one_object_per_line_whatever_the_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_format.configure("json")
    logging.getLogger("tinkex.server.x").info("two\nlines %s", '"quoted"')
    try:
        raise ValueError("inner")
    except ValueError:
        logging.getLogger("other").exception("broke")
    first, second = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (first["level"], first["message"]) == ("info", 'two\nlines "quoted"')
    assert "ValueError: inner" in second["error"]


def test_text_is_for_people_and_libraries_are_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    log_format.configure("text")
    logging.getLogger("library").info("chatter")
    logging.getLogger("tinkex.server").info("hello")
    assert capsys.readouterr().err.endswith("INFO hello\n")
    assert len(capsys.readouterr().err.splitlines()) == 0


def test_facts_of_a_record_are_fields_of_its_object(capsys: pytest.CaptureFixture[str]) -> None:
    log_format.configure("json")
    logging.getLogger("tinkex.server").info("one", extra={"facts": {"event": "saved", "run": "r"}})
    found = json.loads(capsys.readouterr().err)
    assert (found["message"], found["event"], found["run"]) == ("one", "saved", "r")


def test_quiet_leaves_warnings_only(capsys: pytest.CaptureFixture[str]) -> None:
    log_format.configure("text", quiet=True)
    logging.getLogger("tinkex.server").info("hello")
    logging.getLogger("tinkex.server").warning("careful")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("WARNING careful")
