"""A small HTTP server for files: ranges and tags, and on demand cuts, refusals and slowness."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Behaviour:
    """How the server treats its clients."""

    files: dict[str, bytes]
    cut_after: list[int] = field(default_factory=list)
    """Bytes to send before hanging up, one entry per request until used up."""
    statuses: list[int] = field(default_factory=list)
    """Statuses to answer instead of the file, one per request until used up."""
    digest: str | None = None
    """What to state as the SHA-256 of every file; "" states the true one."""
    pause: float = 0.0
    """Seconds to wait after every block of 64 KiB."""
    answers: dict[str, Any] = field(default_factory=dict)
    """JSON by method and path ("GET /x"); a function is called with the request's path."""
    parts: int | None = None
    """The status of answers to those who ask for a part with an end; None sends them all of it."""
    ranges: list[str | None] = field(default_factory=list)
    """The Range header of every GET that came."""
    keys: list[str | None] = field(default_factory=list)
    """The API key of every GET that came."""


@dataclass(frozen=True)
class Reply:
    """An answer of another status than 200, for `Behaviour.answers`."""

    status: int
    value: Any = None
    location: str | None = None


@contextmanager
def file_server(behaviour: Behaviour) -> Iterator[str]:
    """Serves until the block ends; gives the address."""

    class Handler(_Handler):
        server_behaviour = behaviour

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_behaviour: Behaviour
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        behaviour = self.server_behaviour
        behaviour.ranges.append(self.headers.get("Range"))
        behaviour.keys.append(self.headers.get("X-API-Key"))
        if behaviour.statuses:
            self._refuse(behaviour.statuses.pop(0))
            return
        if self._answered("GET"):
            return
        name = self.path.partition("?")[0].lstrip("/")
        content = behaviour.files.get(name)
        if content is None:
            self._refuse(404)
        else:
            self._send(content)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self._answered("POST"):
            self._refuse(404)

    def do_DELETE(self) -> None:
        if not self._answered("DELETE"):
            self._refuse(404)

    def _answered(self, method: str) -> bool:
        key = f"{method} {self.path.partition('?')[0]}"
        if key not in self.server_behaviour.answers:
            return False
        value = self.server_behaviour.answers[key]
        value = value(self.path) if callable(value) else value
        reply = value if isinstance(value, Reply) else Reply(200, value)
        body = json.dumps(reply.value).encode()
        self.send_response(reply.status)
        if reply.location is not None:
            self.send_header("Location", reply.location)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        with suppress(OSError):  # the client may have gone away
            self.end_headers()
            self.wfile.write(body)
        return True

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, content: bytes) -> None:
        behaviour = self.server_behaviour
        part = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if part and behaviour.parts is not None:
            self._send_part(content, int(part[1]), int(part[2]) + 1)
            return
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        start = int(asked[1]) if asked and self.headers.get("If-Range") == tag else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", tag)
        if behaviour.digest is not None:
            digest = behaviour.digest or b64encode(hashlib.sha256(content).digest()).decode()
            self.send_header("Repr-Digest", f"sha-256=:{digest}:")
        self.end_headers()
        end = len(content)
        if behaviour.cut_after:
            end = min(end, start + behaviour.cut_after.pop(0))
        self._write(content, start, end)
        if end < len(content):
            self.close_connection = True

    def _send_part(self, content: bytes, start: int, end: int) -> None:
        assert self.server_behaviour.parts is not None
        self.send_response(self.server_behaviour.parts)
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        cuts = self.server_behaviour.cut_after
        sent = min(end, start + cuts.pop(0)) if cuts else end
        self._write(content, start, sent)
        self.close_connection = sent < end

    def _write(self, content: bytes, start: int, end: int) -> None:
        try:
            for position in range(start, end, 1 << 16):
                self.wfile.write(content[position : min(position + (1 << 16), end)])
                if self.server_behaviour.pause:
                    time.sleep(self.server_behaviour.pause)
        except OSError:
            self.close_connection = True

    def log_message(self, *_arguments: Any) -> None:
        """Says nothing."""
