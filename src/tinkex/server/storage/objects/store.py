"""An object store as this server uses it: put, get, list, delete, and links for others to get by.

Blocks; call it from threads. Retries with jitter are obstore's. What still fails raises
`StoreDown`, and `trouble` says so in words until something works again.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from tinkex.server.storage.objects.silence import Silence
from tinkex.server.storage.objects.trouble import emptied, in_words, short, unanswered

T = TypeVar("T")
Buffer: TypeAlias = Any
"""What obstore gives of an object; it supports the buffer protocol."""

PART_BYTES = 16 * 1024 * 1024
"""Larger objects go up in parts of this size."""
_LINK_S = 3600.0
_BLOCK_BYTES = 4 * 1024 * 1024
_RETRY = {
    "max_retries": 10,
    "retry_timeout": timedelta(seconds=6),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=2),
        "base": 2,
    },
}
_PAUSE_S = 1.0
_CLIENT = {"connect_timeout": "3s", "timeout": "60s"}
_SIGNING = re.compile(r"^(s3|s3a|gs|az|azure|adl|abfss?)://")
_PLAIN_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_ENDPOINT")


class StoreDown(OSError):
    """The object store does not answer, or refuses; it may be asked again."""


class NoSuchObject(OSError):
    """The store answers, and has no such object."""


class BadStore(Exception):
    """A store cannot be used as it was named. The message says what to do."""


class Found(NamedTuple):
    """An object, and when it was written in Unix seconds."""

    key: str
    size: int
    modified: float


class Traffic:
    """What was asked of a store since the start, for those who watch it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        self.seconds = 0.0
        self.bytes: Counter[str] = Counter()

    def asked(self, outcome: str, seconds: float) -> None:
        with self._lock:
            self.requests[outcome] += 1
            self.seconds += seconds

    def moved(self, direction: str, size: int) -> None:
        with self._lock:
            self.bytes[direction] += size


class ObjectStore:
    """Everything under one address. Raises `BadStore` for one that cannot be understood."""

    def __init__(self, url: str, environ: Mapping[str, str] | None = None) -> None:
        self.url = url
        self.traffic = Traffic()
        self._failure: str | None = None
        self._silence = Silence()
        self._ranges: bool | None = None
        self._witness: str | None = None
        self._signs = _SIGNING.match(url) is not None
        _check(url)
        self._api = _obstore()
        self._parts = importlib.import_module("tinkex.engine.process.parts")
        self._links = importlib.import_module("tinkex.engine.process.linked_files")
        self._store = _open(url, os.environ if environ is None else environ)

    @property
    def trouble(self) -> str | None:
        """Why what needs the store waits, in words."""
        return self._failure or unanswered(self._silence.seconds)

    def expect(self, key: str) -> None:
        """From now on this object is there whatever else is not. Where it is missing too, the store
        is away, and something else answers in its place, or its folder is not mounted."""
        self._witness = key

    def put(self, key: str, content: bytes | Path | Iterable[bytes]) -> None:
        """Write an object; it is whole and there to stay when this returns."""
        put = self._api.put
        if not self._signs:  # a folder would be made anew under what is not mounted
            self._check_witness(key)
        counted = content if isinstance(content, bytes | Path) else self._counted(content)
        self._try(lambda: put(self._store, key, counted, chunk_size=PART_BYTES), _size(content))
        self.traffic.moved("sent", _size(content) or 0)

    def _counted(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        for part in parts:
            self.traffic.moved("sent", len(part))
            yield part

    def get(self, key: str) -> bytes:
        found = self._try(lambda: bytes(self._api.get(self._store, key).bytes()))
        self.traffic.moved("received", len(found))
        return found

    def sha256(self, key: str) -> str | None:
        """The hash of an object's bytes, read to the end; None if there is none."""
        try:
            return self._try(lambda: self._hash(key), None)
        except NoSuchObject:
            return None

    def _hash(self, key: str) -> str:
        digest = hashlib.sha256()
        for block in self._blocks(key):
            digest.update(block)
        return digest.hexdigest()

    def has(self, key: str) -> bool:
        try:
            self._try(lambda: self._api.head(self._store, key))
        except NoSuchObject:
            return False
        return True

    def fetch(self, key: str, size: int, target: Path) -> str:
        """Get an object of known size into a new file, a large one's parts at the same time; the
        SHA-256 of what came."""
        if size <= self._parts.PART_BYTES:
            digest = self._try(lambda: self._stream(key, target), size)
        elif self._has_ranges(key):
            parts = self._parts.in_parts(size)
            digest = self._parts.assemble(target, size, parts, partial(self._bring, key))
        else:
            digest = self._by_link(key, size, target)
        self.traffic.moved("received", size)
        return digest

    def _bring(self, key: str, start: int, length: int, write: Callable[[Buffer], None]) -> None:
        get = self._api.get_range
        write(self._try(lambda: get(self._store, key, start=start, length=length), length))

    def _by_link(self, key: str, size: int, target: Path) -> str:
        """From a service whose parts obstore does not take as such, as it is got elsewhere."""
        url = self.link(key, _LINK_S)
        if url is None:
            return self._try(lambda: self._stream(key, target), size)
        return self._try(lambda: str(self._links.download(url, size, target)), size)

    def _stream(self, key: str, target: Path) -> str:
        digest = hashlib.sha256()
        with target.open("wb") as file:
            for block in self._blocks(key):
                digest.update(block)
                file.write(block)
        return digest.hexdigest()

    def _blocks(self, key: str) -> Iterator[Buffer]:
        yield from self._api.get(self._store, key).stream(min_chunk_size=_BLOCK_BYTES)

    def _has_ranges(self, key: str) -> bool:
        """Whether obstore gets parts of objects; some services send them as if they were whole."""
        if self._ranges is None:
            try:
                self._try(lambda: self._api.get_range(self._store, key, start=1, length=1))
            except StoreDown as error:
                if "non-partial" not in str(error.__cause__):
                    raise
                self._failure, self._ranges = None, False
            else:
                self._ranges = True
        return self._ranges

    def found(self, prefix: str) -> list[Found]:
        """Every object below a prefix."""
        return self._try(lambda: list(self._list(prefix)), None)

    def _list(self, prefix: str) -> Iterator[Found]:
        for page in self._api.list(self._store, prefix=prefix):
            for entry in page:
                yield Found(entry["path"], entry["size"], entry["last_modified"].timestamp())

    def delete(self, keys: Sequence[str]) -> None:
        """What is gone already is no error."""
        for key in keys:
            try:
                self._try(lambda key=key: self._api.delete(self._store, key))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            except NoSuchObject:
                continue

    @property
    def signs(self) -> bool:
        """Whether it makes links."""
        return self._signs

    def link(self, key: str, seconds: float) -> str | None:
        """An address anybody can get an object by for so long; None where the store has none."""
        if not self._signs:
            return None
        sign, lasting = self._api.sign, timedelta(seconds=seconds)
        return str(self._try(lambda: sign(self._store, "GET", key, expires_in=lasting)))

    def _try(self, work: Callable[[], T], size: int | None = 0) -> T:
        """`size` bytes are to come or to go, as far as that is known."""
        begun, outcome = time.monotonic(), "failed"
        try:
            with self._silence.waiting(size):
                done = work()
            outcome = "answered"
        except (FileNotFoundError, self._api.exceptions.NotFoundError) as error:
            self._check_witness(short(error))
            self._failure, outcome = None, "missing"
            raise NoSuchObject(short(error)) from error
        except (self._api.exceptions.BaseError, self._links.LinkBroken) as error:
            self._failure = in_words(error, self._api.exceptions)
            raise StoreDown(self._failure) from error
        finally:
            self.traffic.asked(outcome, time.monotonic() - begun)
        self._failure = None
        return done

    def _check_witness(self, missing: str) -> None:
        """Raises `StoreDown` where not only this is missing."""
        if self._witness is None:
            return
        try:
            self._api.head(self._store, self._witness)
        except (FileNotFoundError, self._api.exceptions.BaseError) as error:
            self._failure = emptied(missing, self._witness)
            raise StoreDown(self._failure) from error


def _size(content: bytes | Path | Iterable[bytes]) -> int | None:
    if isinstance(content, Path):
        return content.stat().st_size
    return len(content) if isinstance(content, bytes) else None


def _check(url: str) -> None:
    if not (url.startswith("file:///") or _SIGNING.match(url)):
        raise BadStore(
            f"{url} is no object store: give s3://BUCKET/PREFIX, gs://…, az://… or file:///FOLDER"
        )


def _obstore() -> Any:
    try:
        importlib.import_module("obstore.store")
        return importlib.import_module("obstore")
    except ModuleNotFoundError as error:
        raise BadStore("an object store needs the extra s3: pip install 'tinkex[s3]'") from error


def _open(url: str, environ: Mapping[str, str]) -> Any:
    options: dict[str, Any] = {}
    if url.startswith("file://"):
        options["mkdir"] = True
    else:
        plain = any(environ.get(name, "").startswith("http://") for name in _PLAIN_ENDPOINTS)
        options |= {
            "client_options": _CLIENT | ({"allow_http": True} if plain else {}),
            "retry_config": _RETRY,
        }
    try:
        return importlib.import_module("obstore.store").from_url(url, **options)
    except Exception as error:
        raise BadStore(
            f"{url} cannot be used as an object store: {short(error)}{_hint(url)}"
        ) from error


def _hint(url: str) -> str:
    """Where what is lacking is looked for."""
    if _SIGNING.match(url) is None:
        return ""
    return (
        "; account, credentials and endpoint come from the environment "
        "(AWS_…, AZURE_…, GOOGLE_…: docs/cluster.md, Object store)"
    )


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Do what needs the store, again and again while that does not answer."""
    while True:
        try:
            return await work()
        except StoreDown:
            await asyncio.sleep(_PAUSE_S * random.uniform(0.5, 1.5))
