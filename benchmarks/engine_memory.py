"""Peak memory of a 4×2,048-token training step on SmolLM2-135M, against transformers + PEFT.

    python benchmarks/engine_memory.py

Each side runs one step in a process of its own; the figure is the peak of the whole process, model
and libraries included. A process that wants more than the cap below is stopped by the system and
counted at the cap, so that the benchmark is safe on a small machine; its real need is higher.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

SEQUENCES, LENGTH = 4, 2048
CAP = 12
"""GiB."""


def peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def make(side: str) -> Any:
    from engine_training import CACHE, RANK, EngineTrainer
    from peft_baseline import PeftTrainer

    from tinkex.engine.builtin.gguf import ensure_smollm2
    from tinkex.engine.limits import Limits

    folder, recompute = ensure_smollm2(CACHE), side.endswith("recompute")
    if side.startswith("ours"):
        return EngineTrainer(folder, Limits(activation_bytes=0) if recompute else Limits())
    return PeftTrainer(folder, RANK, recompute)


def measure(side: str) -> None:
    """In the child: take one step, print the peak."""
    trainer = make(side)
    rng = np.random.default_rng(0)
    data = [rng.integers(0, 49152, LENGTH) for _ in range(SEQUENCES)]
    resource.setrlimit(resource.RLIMIT_DATA, (CAP << 30, CAP << 30))
    try:
        trainer.step(data)
    except (MemoryError, RuntimeError) as error:
        if "memory" not in str(error):
            raise
        print(json.dumps({"peak": CAP, "capped": True}))
        return
    print(json.dumps({"peak": peak_gigabytes(), "capped": False}))


def child(side: str) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__)), side]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    from report import Row, write

    rows, capped = [], []
    for name, suffix, target in (
        ("as usual", "", "≥2×"),
        ("recomputing activations", " recompute", ""),
    ):
        ours, theirs = child("ours" + suffix), child("theirs" + suffix)
        rows.append(
            Row(f"peak, {name}", ours["peak"], "GiB", against=theirs["peak"], target=target)
        )
        if theirs["capped"]:
            capped.append(name)
    note = f"transformers + PEFT needed more than the cap of {CAP} GiB: {', '.join(capped)}."
    title = f"Memory of a {SEQUENCES}×{LENGTH}-token step, SmolLM2-135M"
    write("engine_memory", title, rows, note if capped else "")


if __name__ == "__main__":
    measure(sys.argv[1]) if len(sys.argv) > 1 else main()
