"""Memory that was freed is used again, without asking the system for it each time."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from tinkex.server.hosting.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        bodies = [bytes([1]) * 1_000_000 for _ in range(8)]
        del bodies
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
keep_freed_memory()
faults()
print(before, faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the C library of Linux is told")
def test_bodies_freed_are_not_faulted_in_again() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    before, after = map(int, done.stdout.split())
    assert before > 5000
    assert after < 500
