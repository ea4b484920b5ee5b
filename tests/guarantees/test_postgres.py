"""Guarantee 10 with a team's database: servers and PostgreSQL die, the next server takes over.

Two `tinkex serve` at one address on one database: one works, one waits. Both SDKs train meanwhile.
"""

from __future__ import annotations

import hashlib
import random
import time
from pathlib import Path

import psycopg
import pytest

from guarantees.tenant import SDKS, Tenant
from support.postgres import Postgres, database, postgres
from support.server_process import ServerProcess, free_port
from support.serving import Serving

__all__ = ["database", "postgres"]
STEPS = 8
HARM = ("server", "database", "both")


class Team:
    """One server that works and one that waits, on one database and one address."""

    def __init__(self, home: Path, database: str, server: Postgres) -> None:
        self._home, self._database, self._server = home, database, server
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.working = self._new()
        self.working.wait_for("ready after")
        self.waiting = self._new()

    def _new(self) -> Serving:
        return Serving(self._home, self._database, self._port)

    def harm(self, what: str) -> None:
        if what != "server":
            self._server.crash()
        if what != "database":
            self.working.kill()
        if what != "server":
            self._server.start()
        if what != "database":
            self.waiting.wait_for("ready after")
            self.working, self.waiting = self.waiting, self._new()

    def weights(self, name: str) -> str:
        with psycopg.connect(self._database) as connection:
            row = connection.execute(
                "SELECT folder FROM tinkex.checkpoints WHERE name = %s", (name,)
            ).fetchone()
        assert row is not None
        return digest_of(self._home / "weights" / str(row[0]))

    def end(self) -> None:
        self.waiting.kill()
        self.working.kill()


def digest_of(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _expected(home: Path, model: Path) -> dict[str, object]:
    calm = ServerProcess(home, model)
    calm.start()
    try:
        calm.wait_ready()
        tenants = {sdk: Tenant(sdk, calm.url, STEPS) for sdk in SDKS}
        found: dict[str, object] = {sdk: tenant.losses() for sdk, tenant in tenants.items()}
        return found | {f"{sdk} weights": calm.weights_digest(f"final-{sdk}") for sdk in SDKS}
    finally:
        calm.end()


@pytest.mark.slow
def test_kills_of_server_and_database_change_no_number_and_raise_nothing(
    tmp_path: Path, tiny_llama: Path, postgres: Postgres, database: str
) -> None:
    """`kill -9` of the server, of PostgreSQL and of both: the waiting server says whom it waits for
    and takes over; losses and weights equal those of a calm server on SQLite bit for bit."""
    expected = _expected(tmp_path / "calm", tiny_llama)
    team = Team(tmp_path / "team", database, postgres)
    try:
        assert f"a server at {team.url}" in team.waiting.wait_for("waiting to take over")
        tenants = {sdk: Tenant(sdk, team.url, STEPS) for sdk in SDKS}
        dice = random.Random(5)
        for what in HARM:
            seen = sum(tenant.steps for tenant in tenants.values())
            while sum(tenant.steps for tenant in tenants.values()) == seen:
                assert any(tenant.running for tenant in tenants.values())
                time.sleep(0.01)
            time.sleep(dice.random() * 0.1)
            team.harm(what)
        found: dict[str, object] = {sdk: tenant.losses() for sdk, tenant in tenants.items()}
        found |= {f"{sdk} weights": team.weights(f"final-{sdk}") for sdk in SDKS}
    finally:
        team.end()
    assert found == expected
