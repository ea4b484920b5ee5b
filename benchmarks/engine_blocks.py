"""A packed training step of a hybrid model and of mixtures of experts against transformers + PEFT.

    python benchmarks/engine_blocks.py

The built-in tiny models. Both sides: float32, rank 32 on all that is adapted, next-token loss,
AdamW, the same sequences of mixed lengths; theirs are padded. Steps alternate; medians of the CPU
time of one thread, so that what else the machine does counts for little.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import peft
import torch
from engine_training import CACHE, RANK, EngineTrainer, medians
from peft_baseline import MODULES, PeftTrainer
from report import Row, write

from tinkex.engine.builtin.tiny import ensure_tiny
from tinkex.engine.training import batch

LENGTHS = (256, 224, 192, 160, 128, 96, 64, 32)
_ATTENTION = [name for name in MODULES if name[0] in "qkvol"]
_EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
CONFIGS = {
    "tinkex/tiny-qwen3.5": {
        "target_modules": [*MODULES, "in_proj_qkv", "in_proj_z", "out_proj"],
    },
    "tinkex/tiny-qwen3-moe": {"target_modules": _ATTENTION, "target_parameters": _EXPERTS},
    "tinkex/tiny-gpt-oss": {"target_modules": _ATTENTION, "target_parameters": _EXPERTS},
}


def main() -> None:
    torch.set_num_threads(1)
    batch.threads_for = lambda *_: 1
    rows, notes = [], []
    for name in sys.argv[1:] or CONFIGS:
        folder = ensure_tiny(name, Path(CACHE))
        config = peft.LoraConfig(r=RANK, lora_alpha=32, **CONFIGS[name])
        ours, theirs = EngineTrainer(folder), PeftTrainer(folder, RANK, config=config)
        rng = np.random.default_rng(0)
        data = [rng.integers(0, 256, length) for length in LENGTHS]
        notes.append(f"{name} {abs(ours.step(data) / theirs.step(data) - 1):.1e}")
        own, other = medians(ours.step, theirs.step, data, time.process_time)
        told = f"step, {name}, 8 of 32…256"
        rows.append(Row(told, own * 1e3, "ms", against=other * 1e3, target="≥2×"))
    note = f"The first losses agree: {', '.join(notes)} (B starts at zero on both sides)."
    write("engine_blocks", "Packed training step of hybrids and mixtures", rows, note)


if __name__ == "__main__":
    main()
