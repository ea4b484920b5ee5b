"""How long `tinkex --help` and `tinkex version` take, against the official command line.

    python benchmarks/cli_startup.py

Runs of both and of the bare interpreter alternate, so that whatever else the machine does hits all
of them; medians of wall time.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from report import Row, write

ROUNDS = 25
WARM_UPS = 3
BIN = Path(sys.executable).parent
COMMANDS = {
    "bare": [sys.executable, "-c", "pass"],
    "ours --help": [str(BIN / "tinkex"), "--help"],
    "ours version": [str(BIN / "tinkex"), "version"],
    "official --help": [str(BIN / "tinker"), "--help"],
    "official version": [str(BIN / "tinker"), "version"],
}


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def measure() -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(WARM_UPS + ROUNDS):
        for name, command in COMMANDS.items():
            taken = seconds(command)
            if number >= WARM_UPS:
                times[name].append(taken * 1000)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    found = measure()
    rows = [
        Row(
            f"`tinkex {word}`", found[f"ours {word}"], "ms", found[f"official {word}"], target="≥8×"
        )
        for word in ("--help", "version")
    ]
    rows += [
        Row(
            f"`tinkex {word}` over the bare interpreter",
            found[f"ours {word}"] - found["bare"],
            "ms",
            target="≤50 ms",
        )
        for word in ("--help", "version")
    ]
    note = (
        f"The bare interpreter takes {found['bare']:.1f} ms. Medians of {ROUNDS} runs each, "
        "interleaved. The alternative is the official `tinker` command in the same environment."
    )
    write("cli_startup", "Start of the command line", rows, note)


if __name__ == "__main__":
    main()
