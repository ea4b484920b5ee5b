"""Gate 11: a changed byte anywhere in a checkpoint is found when it is loaded."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

import tinkex
from support.gate_data import batch, saved_folder, step
from support.server_process import MODEL, ServerProcess
from tinkex.server import manifest

pytestmark = pytest.mark.slow


def _flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << place % 8
    path.write_bytes(data)


def test_gate_11_any_flipped_byte_is_found_on_load(server: ServerProcess, service: Any) -> None:
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
