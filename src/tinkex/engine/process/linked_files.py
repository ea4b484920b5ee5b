"""Files by their links: a large one in parts at the same time, where its service gives parts.

Some services send the part that was asked for with the status of a whole file, 200; what counts is
the range that an answer says it has. A part that breaks off is asked for from there on, alone.
"""

from __future__ import annotations

import random
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import TypeVar
from urllib.error import HTTPError

from tinkex.engine.process.parts import PART_BYTES, Write, assemble, in_parts

T = TypeVar("T")

_TRIES = 6
_FIRST_PAUSE_S = 0.25
_TIMEOUT_S = 60.0
_BLOCK = 1 << 20


class LinkBroken(OSError):
    """A link's file did not arrive, after all retries."""


def gives_parts(url: str) -> bool:
    """Whether a service sends parts of the file. Raises `LinkBroken`."""

    def first_byte_alone() -> bool:
        with _open(url, 0, 1) as answer:
            return _is_part(answer, 0, 1)

    return _persistently(first_byte_alone)


def download(url: str, size: int, target: Path) -> str:
    """Fetch a file of known size; returns the SHA-256 of its content. Raises `LinkBroken`, and
    `FileNotFoundError` if it does not exist."""
    if size > PART_BYTES and gives_parts(url):
        return assemble(target, size, in_parts(size), partial(_bring_part, url))
    return assemble(target, size, [range(size)], partial(_bring_whole, url))


def _bring_part(url: str, start: int, length: int, write: Write) -> None:
    come = 0

    def go_on() -> None:
        nonlocal come
        with _open(url, start + come, length - come) as answer:
            if not _is_part(answer, start + come, length - come):
                raise OSError("its service has sent something else than the part asked for")
            for block in _blocks(answer, start + come, length - come):
                write(block)
                come += len(block)

    _persistently(go_on)


def _bring_whole(url: str, _: int, length: int, write: Write) -> None:
    """Each try gets all of it, and writes what those before it did not."""
    come = 0

    def go_on() -> None:
        nonlocal come
        with _open(url) as answer:
            for _known in _blocks(answer, 0, come):
                pass
            for block in _blocks(answer, come, length - come):
                write(block)
                come += len(block)
            if answer.read(1):
                raise OSError(f"it is longer than the {length} bytes that were saved")

    _persistently(go_on)


def _open(url: str, start: int = 0, length: int | None = None) -> HTTPResponse:
    part = {} if length is None else {"Range": f"bytes={start}-{start + length - 1}"}
    request = urllib.request.Request(url, headers=part)
    try:
        answer: HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except HTTPError as refusal:
        refusal.close()
        if refusal.code == HTTPStatus.NOT_FOUND:
            raise FileNotFoundError("there is nothing at its link") from None
        raise
    return answer


def _is_part(answer: HTTPResponse, start: int, length: int) -> bool:
    said = answer.headers.get("Content-Range", "")
    return said.startswith(f"bytes {start}-{start + length - 1}/")


def _blocks(answer: HTTPResponse, start: int, length: int) -> Iterator[memoryview]:
    """The next bytes of an answer; each is good until the next one is asked for."""
    block, done = memoryview(bytearray(min(_BLOCK, length))), 0
    while done < length:
        count = answer.readinto(block[: length - done])
        if not count:
            raise OSError(f"it ended after {start + done} bytes")
        yield block[:count]
        done += count


def _persistently(work: Callable[[], T]) -> T:
    for attempt in range(_TRIES):
        try:
            return work()
        except FileNotFoundError:
            raise
        except (OSError, HTTPException) as error:
            if attempt == _TRIES - 1:
                raise LinkBroken(str(error) or type(error).__name__) from error
            time.sleep(random.uniform(0.5, 1.0) * _FIRST_PAUSE_S * 2**attempt)
    raise AssertionError("there is a last attempt")
