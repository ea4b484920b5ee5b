"""Finds out whether this machine's CPU should compute in bfloat16.

Some virtual machines advertise bfloat16 units and kill the process that uses them, others have none
and are slower with it. So a child process tries: only one that lives and is clearly faster counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

MIN_GAIN = 1.3
_TIMEOUT_S = 60.0
_PROGRAM = ["-m", "tinkex.engine.probe"]
_FLAGS = ("amx_bf16", "avx512_bf16")


def cpu_prefers_bfloat16(cache: str | None = None) -> bool:
    """Whether bfloat16 products survive here and beat float32 by `MIN_GAIN`.

    The verdict is kept in the folder `cache` for this processor and this torch.
    """
    described = _cpu_description()
    if not any(flag in described for flag in _FLAGS):
        return False
    verdict = Path(cache) / f"bfloat16-{_machine_key(described)}.json" if cache else None
    if verdict is not None and verdict.is_file():
        return bool(json.loads(verdict.read_text())["prefers"])
    prefers = _try_in_child()
    if verdict is not None:
        verdict.parent.mkdir(parents=True, exist_ok=True)
        draft = verdict.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(json.dumps({"prefers": prefers}))
        draft.replace(verdict)
    return prefers


def measure_gain(size: int = 768, rows: int = 256, repeats: int = 20) -> float:
    """How many times faster a product is in bfloat16 than in float32. May kill the process."""
    return _seconds(torch.float32, size, rows, repeats) / _seconds(
        torch.bfloat16, size, rows, repeats
    )


def _seconds(dtype: torch.dtype, size: int, rows: int, repeats: int) -> float:
    x = torch.randn(rows, size).to(dtype)
    weight = torch.randn(4 * size, size).to(dtype)
    best = float("inf")
    with torch.inference_mode():
        for _ in range(repeats):
            start = time.perf_counter()
            torch.nn.functional.linear(x, weight)
            best = min(best, time.perf_counter() - start)
    return best


def _try_in_child() -> bool:
    try:
        child = subprocess.run(
            [sys.executable, *_PROGRAM],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        return child.returncode == 0 and float(child.stdout) >= MIN_GAIN
    except (subprocess.TimeoutExpired, ValueError, OSError):
        return False


def _cpu_description() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags")
    return "\n".join(sorted({line for line in text.splitlines() if line.startswith(wanted)}))


def _machine_key(described: str) -> str:
    facts = f"{described}\n{torch.__version__}\n{os.cpu_count()}"
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


if __name__ == "__main__":
    print(measure_gain())
