"""Finds out whether this machine's CPU survives bfloat16 products.

Some virtual machines advertise bfloat16 units and kill the process that uses them. So a child
process tries first; only one that lives counts.
"""

from __future__ import annotations

import subprocess
import sys

_TIMEOUT_S = 60.0
_PROGRAM = (
    "import torch\n"
    "x = torch.randn(64, 512).bfloat16()\n"
    "w = torch.randn(1024, 512).bfloat16()\n"
    "torch.nn.functional.linear(x, w)\n"
    "torch.nn.functional.linear(x[:1], w)\n"
)


def cpu_survives_bfloat16() -> bool:
    try:
        child = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError):
        return False
    return child.returncode == 0
