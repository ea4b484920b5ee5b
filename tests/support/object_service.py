"""A real S3 service for tests: `rclone serve s3` over a folder, behind a proxy that can fail."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BUCKET = "models"
_KEY, _SECRET = "tinkex-test-access-key", "tinkex-test-secret-key"
_START_S = 60.0
_BLOCK = 1 << 16


class Proxy:
    """Hands bytes on to the service; `delay_s` late, or not at all while it is `refusing`."""

    def __init__(self, target: int) -> None:
        self.delay_s = 0.0
        self.refusing = False
        self.connections = 0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Refuse from now on, and break what is under way."""
        self.refusing = True
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self.connections += 1
        try:
            if self.refusing:
                return
            with socket.create_connection(("127.0.0.1", self._target)) as service:
                self._open |= {client, service}
                back = threading.Thread(target=self._pump, args=(service, client), daemon=True)
                back.start()
                self._pump(client, service)
                back.join()
                self._open -= {client, service}
        except OSError:
            return
        finally:
            client.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(_BLOCK):
                if self.delay_s:
                    time.sleep(self.delay_s)
                sink.sendall(block)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class ObjectService:
    """The service over `folder`, reached through `proxy`. It can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / BUCKET).mkdir(parents=True)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.proxy = Proxy(self.port)
        self.start()

    @property
    def environ(self) -> dict[str, str]:
        """What a server needs to reach it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.proxy.port}",
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": "us-east-1",
        }

    def keys(self, prefix: str) -> list[str]:
        """The objects below a prefix of the bucket, as they lie on the disk."""
        root = self.folder / BUCKET / prefix
        files = [path for path in root.rglob("*") if path.is_file()]
        return sorted(path.relative_to(root).as_posix() for path in files)

    def start(self) -> None:
        program = Path(sys.executable).with_name("rclone")
        command = [program, "serve", "s3", "--auth-key", f"{_KEY},{_SECRET}", "--vfs-cache-mode"]
        self._process = subprocess.Popen(
            [*command, "off", "--addr", f"127.0.0.1:{self.port}", str(self.folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "RCLONE_CONFIG": str(self.folder.parent / "rclone.conf")},
        )
        self._wait()

    def stop(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=30):
                    return
            except urllib.error.HTTPError:
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("rclone did not start")


@contextmanager
def object_service(folder: Path) -> Iterator[ObjectService]:
    service = ObjectService(folder)
    before = {name: os.environ.get(name) for name in service.environ}
    os.environ.update(service.environ)
    try:
        yield service
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        service.stop()
        service.proxy.close()


def free_port() -> int:
    """One that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
