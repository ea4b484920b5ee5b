"""Guarantee 10 with a team's database: servers and PostgreSQL die, the next server takes over.

Three `tinkex serve` at one address on one database: one works, two wait. Both SDKs train meanwhile.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from guarantees.tenant import SDKS, Tenant, undisturbed
from support.postgres import Postgres
from support.server_process import ServerProcess, free_port
from support.serving import Serving
from tinkex.server.storage.database.postgres.lease import LIFETIME_S

STEPS = 10
HARM = ("server", "database", "both")


class Team:
    """One server that works and two that wait, on one database and one address."""

    def __init__(self, home: Path, database: str, server: Postgres) -> None:
        self._home, self._database, self._server = home, database, server
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.servers = [self._serving()]
        self.servers[0].wait_for("ready after")
        self.servers += [self._serving() for _ in range(2)]
        for waiting in self.servers[1:]:
            assert f"a server at {self.url}" in waiting.wait_for("waiting to take over")

    def _serving(self) -> Serving:
        return Serving(self._home, self._database, self._port)

    def harm(self, what: str) -> None:
        """To what works. On a machine so busy that a server lost the lease with its database, there
        is one waiting less: as an operator would, start another."""
        self.servers = [each for each in self.servers if each.running]
        if len(self.servers) < 2:
            self.servers.append(self._serving())
        if what != "database":
            (working,) = [each for each in self.servers if f"process {each.pid} " in self._holder()]
        if what != "server":
            self._server.crash()
        if what != "database":
            working.kill()
            self.servers.remove(working)
        if what != "server":
            self._server.start()

    def _holder(self) -> str:
        return self._asked("SELECT holder FROM tinkex.lease")

    def _asked(self, sql: LiteralString, *values: str) -> str:
        with psycopg.connect(self._database) as connection:
            row = connection.execute(sql, values).fetchone()
        assert row is not None
        return str(row[0])

    def weights(self, name: str) -> str:
        folder = self._asked("SELECT folder FROM tinkex.checkpoints WHERE name = %s", name)
        return digest_of(self._home / "weights" / folder)

    def end(self) -> None:
        for server in self.servers:
            server.kill()


def digest_of(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


@pytest.mark.slow
def test_kills_of_server_and_database_change_no_number_and_raise_nothing(
    tmp_path: Path, tiny_llama: Path, postgres: Postgres, database: str
) -> None:
    """`kill -9` of the server, of PostgreSQL and of both: the waiting server says whom it waits for
    and takes over; losses and weights equal those of a calm server on SQLite bit for bit."""
    expected = undisturbed(ServerProcess(tmp_path / "calm", tiny_llama), STEPS)
    team = Team(tmp_path / "team", database, postgres)
    tenants = {sdk: Tenant(sdk, team.url, STEPS) for sdk in SDKS}
    try:
        dice = random.Random(5)
        for what in HARM:
            seen = sum(tenant.steps for tenant in tenants.values())
            while sum(tenant.steps for tenant in tenants.values()) == seen:
                assert any(tenant.running for tenant in tenants.values())
                time.sleep(0.01)
            time.sleep(dice.random() * 0.1)
            team.harm(what)
        losses = {sdk: tenant.losses() for sdk, tenant in tenants.items()}
        found = {sdk: (losses[sdk], team.weights(f"final-{sdk}")) for sdk in SDKS}
    finally:
        for tenant in tenants.values():
            tenant.end()
        team.end()
    assert found == dict.fromkeys(SDKS, expected)


@pytest.mark.slow
@pytest.mark.parametrize("comes", ["before", "after"])
def test_a_server_that_stands_still_on_the_port_keeps_nobody_from_taking_over(
    tmp_path: Path, database: str, comes: str
) -> None:
    """It wakes, finds that the database is another's, and ends; the waiting one takes the port,
    also one that came when the lease had run out and that was never told to wait for it."""
    port = free_port()
    first = Serving(tmp_path, database, port)
    first.wait_for("ready after")
    if comes == "after":
        os.kill(first.pid, signal.SIGSTOP)
        time.sleep(LIFETIME_S + 1)
    second = Serving(tmp_path, database, port)
    try:
        if comes == "before":
            second.wait_for("waiting to take over")
            os.kill(first.pid, signal.SIGSTOP)
        assert f"port {port} " in second.wait_for("waiting until it is free")
        os.kill(first.pid, signal.SIGCONT)
        first.wait_for("another server has taken over")
        second.wait_for("ready after")
    finally:
        first.kill()
        second.kill()
