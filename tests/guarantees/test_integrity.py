"""Guarantee 11: a changed byte in a checkpoint or a snapshot is found when it is loaded."""

from __future__ import annotations

import random
import re
import sqlite3
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import tinkex
from support.guarantee_data import batch, saved_folder, step
from support.server_process import MODEL, ServerProcess
from tinkex.server.storage import manifest

pytestmark = pytest.mark.slow


def _flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << place % 8
    path.write_bytes(data)


def test_guarantee_11_any_flipped_byte_is_found_on_load(
    server: ServerProcess, service: Any
) -> None:
    """In every file, at any place, one bit: loading fails by the file's name and changes nothing;
    mended, it loads again."""
    client = service.create_lora_training_client(MODEL, rank=2, seed=1)
    step(client, batch(1, 2))
    path = client.save_state("integrity").result().path
    folder, dice = saved_folder(server.home, "integrity"), random.Random(1)
    digest = manifest.read(folder).digest
    for file in sorted(folder.iterdir()):
        for place in {0, file.stat().st_size - 1, *dice.choices(range(file.stat().st_size), k=20)}:
            _flip(file, place)
            with pytest.raises(manifest.CorruptCheckpoint, match=r"."):
                manifest.verify(folder, digest)
            _flip(file, place)
        _flip(file, file.stat().st_size // 2)
        with pytest.raises(tinkex.TinkerError, match=re.escape(file.name)):
            service.create_training_client_from_state_with_optimizer(path)
        _flip(file, file.stat().st_size // 2)
    service.create_training_client_from_state_with_optimizer(path)


def test_guarantee_11_a_flipped_byte_in_a_snapshot_changes_no_number(
    tmp_path: Path, tiny_llama: Path
) -> None:
    """The newest snapshot is damaged and both processes are killed: the run goes on from the one
    before, bit for bit, and its client notices nothing."""
    calm = _trained(ServerProcess(tmp_path / "calm", tiny_llama, snapshot_steps=2), damage=False)
    hurt = _trained(ServerProcess(tmp_path / "hurt", tiny_llama, snapshot_steps=2), damage=True)
    assert hurt == calm


def _trained(server: ServerProcess, damage: bool) -> tuple[list[float], str]:
    server.start()
    try:
        server.wait_ready()
        with tinkex.ServiceClient(base_url=server.url, api_key="tml-alice") as service:
            client = service.create_lora_training_client(MODEL, rank=2, seed=1)
            losses = [_loss(client, number) for number in range(5)]
            if damage:
                newest = _newest_snapshot(server.home)
                server.kill()
                file = newest / "adapter_model.safetensors"
                _flip(file, file.stat().st_size // 2)
                server.start()
                server.wait_ready()
            losses += [_loss(client, number) for number in range(5, 8)]
            client.save_state("final").result()
            if damage:
                _says_one_was_damaged(server)
        return losses, server.weights_digest("final")
    finally:
        server.end()


def _loss(client: Any, number: int) -> float:
    return float(step(client, batch(number, 2)).metrics["loss:sum"])


def _newest_snapshot(home: Path) -> Path:
    """The newer one of a run's two, once both are there."""
    rows: list[Any] = []
    database = sqlite3.connect(home / "tinkex.db")
    try:
        while len(rows) < 2:
            rows = database.execute("SELECT folder FROM snapshots ORDER BY seq_id DESC").fetchall()
            time.sleep(0.05)
    finally:
        database.close()
    return home / "snapshots" / str(rows[0][0])


def _says_one_was_damaged(server: ServerProcess) -> None:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=60) as page:
        text = page.read().decode()
    assert "tinkex_snapshots_damaged_total 1" in text
    assert "tinkex_replay_differences_total 0" in text
