"""Listing 5,000 checkpoints and downloading a large one from a local `tinkex serve`.

    python benchmarks/cli_listing.py

Listing: whole commands, ours and the official one, in turns; medians of wall time. Download: our
command against plain `curl` on the same signed links, in turns; medians of bytes per second, the
start of our command included. The checkpoints are rows and files written into the server's home
beforehand: making them is not what is measured.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from report import Row, write

from tinkex import Config, RestClient
from tinkex.server.storage import manifest
from tinkex.server.storage.database import checkpoints, open_store, runs, sessions
from tinkex.server.tenancy.tenants import hash_key

CHECKPOINTS = 5000
FILES = 2
LARGE_BYTES = 512 << 20
SMALL_BYTES = 16 << 20
LISTING_ROUNDS = 5
DOWNLOAD_ROUNDS = 5
KEY = "tml-benchmark"
MODEL = "tinkex/tiny-llama"
SESSION = "00000000-0000-0000-0000-000000000000"
RUN = f"{SESSION}:train:0"
BIN = Path(sys.executable).parent


def fill(home: Path) -> None:
    """A session, a run, many checkpoints without files, and two exports with them."""
    home.mkdir()
    store, now = open_store(home / "tinkex.db"), time.time()
    tenant = f"key-{hash_key(KEY)[:16]}"
    rows = [row(f"c{number:05}", "weights", tenant, now - number) for number in range(CHECKPOINTS)]
    for name, size in (("large", LARGE_BYTES), ("small", SMALL_BYTES)):
        rows.append(export(home, name, size, tenant))

    def work(connection: Any) -> None:
        sessions.insert(connection, sessions.SessionRow(SESSION, tenant, now, now))
        runs.insert(connection, runs.RunRow(RUN, SESSION, tenant, MODEL, "adamw", now, now, 8))
        for item in rows:
            checkpoints.put(connection, item)

    store.post(work)
    store.close()


def row(name: str, kind: Any, tenant: str, made: float, **more: Any) -> checkpoints.CheckpointRow:
    values = {"folder": "none", "size_bytes": 1_000_000, "digest": ""} | more
    return checkpoints.CheckpointRow(
        path=f"tinker://{RUN}/{kind}/{name}", model_id=RUN, session_id=SESSION, tenant=tenant,
        kind=kind, name=name, base_model=MODEL, rank=8, train_attn=True, train_mlp=True,
        train_unembed=True, optimizer="adamw", step=0, created_at=made, **values,
    )  # fmt: skip


def export(home: Path, name: str, size: int, tenant: str) -> checkpoints.CheckpointRow:
    folder = home / "weights" / name
    folder.mkdir(parents=True)
    block = os.urandom(1 << 20)
    for number in range(FILES):
        with (folder / f"part-{number}.safetensors").open("wb") as file:
            file.writelines(block for _ in range(size // FILES >> 20))
    made = manifest.write(folder)
    return row(
        name, "external_weights", tenant, 0.0,
        folder=name, size_bytes=made.size_bytes, digest=made.digest,
    )  # fmt: skip


@contextmanager
def serving(home: Path) -> Iterator[str]:
    line = [str(BIN / "tinkex"), "serve", "--home", str(home), "--port", "0", "--model", MODEL]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = ""
        for text in process.stdout:
            if "http://" in text and not address:
                address = text.split()[-1]
            if text.startswith("ready"):
                break
        try:
            yield address
        finally:
            process.terminate()
            process.communicate()


def run(line: list[str], environ: dict[str, str]) -> tuple[float, int]:
    """Seconds and peak memory (KiB) of a command."""
    start = time.perf_counter()
    process = subprocess.Popen(line, env=environ, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(line)}")
    return time.perf_counter() - start, usage.ru_maxrss


def listing(environ: dict[str, str]) -> Row:
    line = ["checkpoint", "list", "--limit", "0"]
    times: dict[str, list[float]] = {"tinkex": [], "tinker": []}
    for _ in range(LISTING_ROUNDS + 1):
        for program, found in times.items():
            found.append(run([str(BIN / program), *line], environ)[0])
    ours, theirs = (statistics.median(found[1:]) for found in times.values())
    return Row(f"`checkpoint list` of {CHECKPOINTS:,}", ours, "s", theirs, target="≥2×")


def download(environ: dict[str, str], folder: Path) -> list[Row]:
    ours: list[float] = []
    curls: list[float] = []
    memory = {"large": 0, "small": 0}
    for number in range(DOWNLOAD_ROUNDS + 1):
        for name in memory:
            seconds, peak = fetch(environ, folder, name)
            memory[name] = max(memory[name], peak)
            if name == "large" and number:
                ours.append(LARGE_BYTES / seconds / 1e6)
        seconds = curl(environ, folder)
        if number:
            curls.append(LARGE_BYTES / seconds / 1e6)
    mib = {name: peak / 1024 for name, peak in memory.items()}
    return [
        Row(
            f"`checkpoint download`, {FILES} files of {LARGE_BYTES // FILES >> 20} MiB, checked",
            statistics.median(ours), "MB/s", statistics.median(curls), True, "≥0.8×",
        ),
        Row("peak memory of that command", mib["large"], "MiB", target="constant"),
        Row(f"peak memory, a {SMALL_BYTES >> 20} MiB checkpoint", mib["small"], "MiB"),
    ]  # fmt: skip


def fetch(environ: dict[str, str], folder: Path, name: str) -> tuple[float, int]:
    path = f"tinker://{RUN}/external_weights/{name}"
    line = [str(BIN / "tinkex"), "checkpoint", "download", path, "-o", str(folder / "ours")]
    taken = run(line, environ)
    shutil.rmtree(folder / "ours")
    return taken


def curl(environ: dict[str, str], folder: Path) -> float:
    config = Config.resolve(base_url=environ["TINKER_BASE_URL"], api_key=KEY)
    path = f"tinker://{RUN}/external_weights/large"
    links = RestClient.from_config(config).get_external_weights_urls(path).result().urls
    (folder / "curl").mkdir()
    line = ["curl", "-sS"]
    for name, url in links.items():
        line += ["-o", str(folder / "curl" / name), url]
    seconds, _ = run(line, environ)
    shutil.rmtree(folder / "curl")
    return seconds


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        fill(folder / "home")
        with serving(folder / "home") as address:
            environ = {
                **os.environ,
                "TINKER_BASE_URL": address,
                "TINKER_API_KEY": KEY,
                "TINKER_TELEMETRY": "0",
            }
            rows = [listing(environ), *download(environ, folder)]
    note = (
        "The alternative is the official `tinker` command for the listing, and `curl` on the same "
        "links for the download; both ran in turns with ours. Our download also checks every "
        "file's SHA-256 and includes the start of the command, about half a second; curl does not."
    )
    write("cli_listing", "Listing and downloading from a local server", rows, note)


if __name__ == "__main__":
    main()
