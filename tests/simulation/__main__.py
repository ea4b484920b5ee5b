"""More seeds, or one again: ``python -m simulation FIRST [COUNT]`` with `tests` on the path."""

from __future__ import annotations

import sys
import time

from simulation.world import World


def main(first: int, count: int) -> int:
    started, bad = time.monotonic(), 0
    for seed in range(first, first + count):
        try:
            World(seed).play()
        except Exception as error:
            bad += 1
            print(f"seed {seed}: {error!r}   again with: python -m simulation {seed}", flush=True)
            if count == 1:
                raise
    print(f"{count} seeds, {bad} failed, {time.monotonic() - started:.1f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1))
