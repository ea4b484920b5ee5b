"""The server's core keeps its promises in every story a seed can tell.

A failing seed is told again with `PYTHONPATH=tests python -m simulation SEED`.
"""

from __future__ import annotations

import os

import pytest

from simulation.world import World

FIRST = int(os.environ.get("TINKEX_SEED", "0"))
BLOCK = 25
BLOCKS = int(os.environ.get("TINKEX_SEEDS", "300")) // BLOCK


@pytest.mark.parametrize("block", range(BLOCKS))
def test_nothing_is_lost_doubled_or_reordered(block: int) -> None:
    for seed in range(FIRST + BLOCK * block, FIRST + BLOCK * (block + 1)):
        try:
            World(seed).play()
        except Exception as error:
            error.add_note(f"again with: PYTHONPATH=tests python -m simulation {seed}")
            raise
