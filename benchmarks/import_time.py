"""How long `import tinkex` takes, beside `import tinker` and a bare interpreter.

Fresh processes, the three taking turns, medians of wall time.

    python benchmarks/import_time.py [rounds]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from report import Row, write

COMPILED = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
"""As users have it: what was imported once need not be compiled again."""
PROGRAMS = {"bare": "pass", "tinkex": "import tinkex", "tinker": "import tinker"}


def once(program: str) -> float:
    """Milliseconds from starting the interpreter to its end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, env=COMPILED)
    return (time.perf_counter() - start) * 1000


def medians(rounds: int) -> dict[str, float]:
    for program in PROGRAMS.values():
        once(program)
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(rounds):
        for name, program in PROGRAMS.items():
            times[name].append(once(program))
    return {name: statistics.median(values) for name, values in times.items()}


def main(rounds: int) -> None:
    found = medians(rounds)
    bare = found["bare"]
    write(
        "import_time",
        "Import time",
        [
            Row(
                "import, above the bare interpreter",
                found["tinkex"] - bare,
                "ms",
                against=found["tinker"] - bare,
                target="at most 60 ms, at least 8×",
            ),
            Row("whole process", found["tinkex"], "ms", against=found["tinker"]),
            Row("bare interpreter", bare, "ms"),
        ],
        note=f"Medians of {rounds} fresh processes each, taking turns. The alternative is "
        "`import tinker`.",
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
