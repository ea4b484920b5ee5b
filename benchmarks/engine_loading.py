"""How long SmolLM2-135M takes to load from its cached folder, and an engine process to be ready.

    python benchmarks/engine_loading.py

Loading is measured in fresh processes, imports apart. The folder is in the file cache after the
first round, as it is for any server that restarts.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from report import Row, write

from tinkex.engine.builtin.gguf import ensure_smollm2
from tinkex.engine.builtin.tiny import ensure_tiny
from tinkex.engine.process.parent import RemoteWorker
from tinkex.engine.settings import WorkerConfig

CACHE = Path.home() / ".cache" / "tinkex" / "models"
ROUNDS = 5

_OURS = """
import sys, time
from pathlib import Path
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.sampling.model_end import read_ending
start = time.perf_counter()
load_decoder(sys.argv[1]); read_ending(Path(sys.argv[1]))
print(time.perf_counter() - start)
"""
_THEIRS = """
import sys, time, torch, transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
start = time.perf_counter()
AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
AutoTokenizer.from_pretrained(sys.argv[1])
print(time.perf_counter() - start)
"""


def seconds_inside(program: str, folder: Path) -> float:
    """What the program prints: the time it measured itself, after its imports."""
    child = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True
    )
    return float(child.stdout.split()[-1])


def seconds_to_ready(folder: Path) -> float:
    start = time.perf_counter()
    worker = RemoteWorker(WorkerConfig(str(folder), device="cpu", dtype="float32"))
    try:
        worker.ready()
        return time.perf_counter() - start
    finally:
        worker.close()


def main() -> None:
    smollm2, tiny = ensure_smollm2(CACHE), ensure_tiny("tinkex/tiny-llama", CACHE)
    ours, theirs, ready, tiny_ready = [], [], [], []
    for _ in range(ROUNDS):
        ours.append(seconds_inside(_OURS, smollm2))
        theirs.append(seconds_inside(_THEIRS, smollm2))
        ready.append(seconds_to_ready(smollm2))
        tiny_ready.append(seconds_to_ready(tiny))
    middle = statistics.median
    rows = [
        Row("load weights and tokenizer", middle(ours), "s", middle(theirs), target="≤3 s"),
        Row("engine process to ready, SmolLM2", middle(ready), "s"),
        Row("engine process to ready, tiny model", middle(tiny_ready), "s"),
    ]
    note = f"Medians of {ROUNDS} rounds. The alternative is transformers' from_pretrained."
    write("engine_loading", "Loading SmolLM2-135M from cache", rows, note)


if __name__ == "__main__":
    main()
