"""A server for benchmarks: `tinkex serve` as a process of its own, the way the README starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

STOP_S = 60


@dataclass(frozen=True)
class ServedProcess:
    """Where it answers, and its processes."""

    url: str
    pid: int

    @property
    def engines(self) -> list[int]:
        """Its engines' processes."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/children")  # by the thread that started them
        return [int(child) for task in tasks for child in task.read_text().split()]

    def memory(self) -> tuple[int, int]:
        """Bytes resident now: the server's own process, and its engines'."""
        return resident(self.pid), sum(map(resident, self.engines))

    def processor_s(self) -> float:
        """Seconds of processor time all of them have used."""
        return sum(map(processor_s, [self.pid, *self.engines]))


def machine() -> tuple[float, float]:
    """Seconds of all processors so far: those anybody used, and all there were."""
    line = Path("/proc/stat").read_text(encoding="utf-8").partition("\n")[0]
    ticks = [int(each) / os.sysconf("SC_CLK_TCK") for each in line.split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def processor_s(pid: int) -> float:
    """Seconds of processor time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    """Bytes of memory a process has now."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@contextmanager
def serving(*options: str) -> Iterator[ServedProcess]:
    """A server on a free port, from the line that says it is ready until the block ends."""
    with tempfile.TemporaryDirectory() as home:
        place = ["--port", "0", "--home", str(Path(home) / "home")]
        process = subprocess.Popen(
            [sys.executable, "-m", "tinkex", "serve", *options, *place],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            printed = list(takewhile(lambda line: "ready" not in line, process.stdout))
            # What it prints from now on is taken from it, lest it wait for a full pipe.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield ServedProcess(printed[0].split()[-1], process.pid)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(STOP_S)
