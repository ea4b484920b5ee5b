"""Eight and 64 engines on virtual time: placement, fairness, queue times, and what choosing costs.

    python benchmarks/many_engines_simulated.py [ENGINES...]

The server's core is the real one, engines take known times (`tests/simulation/fleet.py`). A large
tenant has ten runs for every engine, a middle one one, a small one a single run. Each awaits its
calls, five at a time. Then 16 samples for each engine, of prompts that begin alike in groups of
eight.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from report import Row, write

from simulation.fleet import played

STEPS = 2
NOTE = """
Eleven runs for every engine. Waits are in virtual time: how long a client waited for a result
beyond the engine's time for the call, including its own four calls before it. The alternative of a
tenant's median wait is the large tenant's. Choosing an engine is processor time for each request:
crews, balance and routes.
"""


def rows(engines: int) -> list[Row]:
    found = played(engines, _runs(engines), STEPS)
    large = found.median("large 0")
    cost = 1e3 * found.choosing_s / found.requests
    name = f"{engines} engines"
    return [
        Row(f"{name}: busy, the least used one", min(found.busy), "", max(found.busy), True),
        Row(f"{name}: median wait, small tenant", 1e3 * found.median("small"), "ms", 1e3 * large),
        Row(f"{name}: median wait, middle tenant", 1e3 * found.median("middle"), "ms", 1e3 * large),
        Row(f"{name}: wait, 99 of 100", 1e3 * found.late(), "ms", 1e3 * _mean(found.all_waits)),
        Row(f"{name}: runs moved", found.moves, ""),
        Row(f"{name}: choosing an engine, a request", cost, "ms", target="≤0.2 ms"),
    ]


def _mean(values: list[float]) -> float:
    return statistics.fmean(values)


def _runs(engines: int) -> dict[str, int]:
    """A key may have 256 runs: where a large tenant has more, it is several."""
    tenants = -(-10 * engines // 256)
    large = {f"large {number}": 10 * engines // tenants for number in range(tenants)}
    return {**large, "middle": engines - 1, "small": 1}


def main(sizes: list[int]) -> None:
    write(
        "many_engines_simulated",
        f"{' and '.join(map(str, sizes))} engines, simulated",
        [row for engines in sizes for row in rows(engines)],
        NOTE,
    )


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [8, 64])
