"""Millions of inputs: ``PYTHONPATH=tests python -m fuzz COUNT [DECODER…]``."""

from __future__ import annotations

import sys
import time

from fuzz.decoders import DECODERS, attack

_BATCH = 20_000


def main(count: int, names: list[str]) -> None:
    for name in names or list(DECODERS):
        started, read = time.monotonic(), 0
        for seed in range(0, count, _BATCH):
            read += attack(name, seed, min(_BATCH, count - seed))
        took = time.monotonic() - started
        print(f"{name}: {count} inputs, {read} read, the rest refused, {took:.0f} s", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
