"""A packed training step of a hybrid model and of mixtures of experts against transformers + PEFT.

    python benchmarks/engine_blocks.py [MODEL ...]

The built-in tiny models. Both sides: float32, rank 32 on all that is adapted, next-token loss,
AdamW, the same sequences of mixed lengths; theirs are padded. Each in a process of its own, as its
users run it: ours as the server starts an engine, which sets some variables, keeps freed memory and
looks for no garbage among libraries; theirs without that, and for comparison with it. Turns of
a few steps; least and median CPU time of one thread, so that what else the machine does counts for
little.
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from report import Row, write

from tinkex.engine.builtin.tiny import ensure_tiny
from tinkex.engine.process.allocator import keep_freed_memory
from tinkex.engine.process.parent import ENVIRONMENT

LENGTHS = (256, 224, 192, 160, 128, 96, 64, 32)
RANK = 32
TURNS, IN_A_ROW = 7, 5
"""The first step of a turn is not counted: in a run steps follow one another, and what another
process left in the caches is not met again."""
OURS, THEIRS = "ours", "theirs"
_ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj", "lm_head"]
_MLP = ["gate_proj", "up_proj", "down_proj"]
_EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
CONFIGS = {
    "tinkex/tiny-qwen3.5": {
        "target_modules": [*_ATTENTION, *_MLP, "in_proj_qkv", "in_proj_z", "out_proj"],
    },
    "tinkex/tiny-qwen3-moe": {"target_modules": _ATTENTION, "target_parameters": _EXPERTS},
    "tinkex/tiny-gpt-oss": {"target_modules": _ATTENTION, "target_parameters": _EXPERTS},
}


class Steps(Protocol):
    def step(self, sequences: Sequence[NDArray[np.int64]]) -> float: ...


class Side:
    """A process that makes a step whenever it is asked to."""

    def __init__(self, side: str, model: str, as_engine: bool = True) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--side", side, model, *(["--engine"] if as_engine else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=(ENVIRONMENT if as_engine else {}) | os.environ,
        )  # fmt: skip

    def step(self) -> tuple[float, float]:
        """Its loss, and the seconds of CPU time it took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        loss, seconds = self._process.stdout.readline().split()
        return float(loss), float(seconds)

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    if sys.argv[1:2] == ["--side"]:
        answer(*sys.argv[2:])
        return
    rows, notes, alike, at_least = [], [], [], []
    for name in sys.argv[1:] or CONFIGS:
        sides = [Side(OURS, name), Side(THEIRS, name, as_engine=False), Side(THEIRS, name)]
        first = [side.step()[0] for side in sides]
        columns = taking_turns(sides)
        own, other, with_ours = map(statistics.median, columns)
        least = [min(column) for column in columns]
        rows.append(Row(f"step, {name}, 8 of 32…256", own, "ms", against=other, target="≥2×"))
        notes.append(f"{name} {abs(first[0] / first[1] - 1):.1e}")
        alike.append(f"{name} {with_ours:.1f} ms ({with_ours / own:.2f}×)")
        at_least.append(
            f"{name} {least[0]:.1f}, {least[1]:.1f} ({least[1] / least[0]:.2f}×) and "
            f"{least[2]:.1f} ms ({least[2] / least[0]:.2f}×)"
        )
        for side in sides:
            side.close()
    note = (
        f"The first losses agree: {', '.join(notes)} (B starts at zero on both sides).\n\n"
        f"The alternative started as an engine is, too: {'; '.join(alike)}.\n\n"
        f"Least instead of median, ours, the alternative, and that started as an engine: "
        f"{'; '.join(at_least)}."
    )
    write("engine_blocks", "Packed training step of hybrids and mixtures", rows, note)


def taking_turns(sides: Sequence[Side]) -> list[list[float]]:
    """Each side's milliseconds."""
    columns: list[list[float]] = [[] for _ in sides]
    for _ in range(TURNS):
        for side, column in zip(sides, columns, strict=True):
            column += [side.step()[1] * 1e3 for _ in range(IN_A_ROW)][1:]
    return columns


def answer(side: str, model: str, *as_engine: str) -> None:
    """A step for every line that comes in."""
    if as_engine:
        keep_freed_memory()
    trainer = made(side, model)
    if as_engine:
        gc.freeze()
    rng = np.random.default_rng(0)
    data = [rng.integers(0, 256, length) for length in LENGTHS]
    for _ in sys.stdin:
        start = time.process_time()
        loss = trainer.step(data)
        print(loss, time.process_time() - start, flush=True)


def made(side: str, model: str) -> Steps:
    """Each side loads what it needs."""
    torch.set_num_threads(1)
    folder = ensure_tiny(model, Path.home() / ".cache" / "tinkex" / "models")
    if side == OURS:
        from engine_training import EngineTrainer

        from tinkex.engine.training import batch

        batch.threads_for = lambda *_: 1
        return EngineTrainer(folder)
    import peft
    from peft_baseline import PeftTrainer

    config = peft.LoraConfig(r=RANK, lora_alpha=32, **CONFIGS[model])
    return PeftTrainer(folder, RANK, config=config)


if __name__ == "__main__":
    main()
