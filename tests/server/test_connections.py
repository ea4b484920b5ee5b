"""Thousands of connections that say nothing leave the server as quick as before."""

from __future__ import annotations

import resource
import socket
import urllib.request
from pathlib import Path

import pytest

from support.server_process import ServerProcess

CONNECTIONS = 5000
HALF_A_REQUEST = b"POST /api/v1/create_session HTTP/1.1\r\ncontent-length: 99\r\n"


@pytest.mark.slow
def test_five_thousand_idle_connections_keep_nobody_else_out(
    tmp_path: Path, tiny_llama: Path
) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < CONNECTIONS + 500:
        pytest.skip(f"this machine allows {most} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    server = ServerProcess(tmp_path / "home", tiny_llama)
    server.start()
    idle: list[socket.socket] = []
    try:
        server.wait_ready()
        for number in range(CONNECTIONS):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            if number % 2:
                connection.sendall(
                    b"POST /api/v1/create_session HTTP/1.1\r\ncontent-length: 99\r\n"
                )
            idle.append(connection)
        with urllib.request.urlopen(f"{server.url}/api/v1/healthz", timeout=60) as answer:
            assert answer.status == 200
    finally:
        for connection in idle:
            connection.close()
        server.stop()
