"""Fuzzing guided by coverage: ``PYTHONPATH=tests python -m fuzz.guided RUNS SEED CORPUS DECODER…``.

Each decoder runs in a process of its own, from the seeds and whatever an earlier run kept in
CORPUS/DECODER: inputs that reached code no other input reached. A crash, a hang of ten seconds,
two gigabytes of memory or an error that is not a refusal ends the run with the input that did it.
Needs the `fuzz` extra (atheris), which is made for Linux and macOS.
"""

from __future__ import annotations

import hashlib
import random
import re
import subprocess
import sys
import time
from pathlib import Path

_HANG_S = 10
_MEMORY_MB = 2048
_LONGEST = 4096
_SUMMARY = re.compile(r"#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)")


def main(runs: int, seed: int, corpus: Path, names: list[str]) -> int:
    """One line per decoder; 1 if any of them was brought down."""
    from fuzz.decoders import DECODERS

    failed = 0
    for name in names or list(DECODERS):
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "fuzz.guided", "--one", name, str(runs), str(seed), str(corpus)],
            stderr=subprocess.PIPE,
            text=True,
        )
        took = time.monotonic() - started
        if done.returncode:
            failed = 1
            print(f"{name}: FINDING\n{done.stderr[-6000:]}", flush=True)
        else:
            inputs, covered, features, kept = _SUMMARY.findall(done.stderr)[-1]
            reached = f"{covered} places and {features} paths covered, {kept} inputs kept"
            print(f"{name}: {inputs} inputs, seed {seed}, {reached}, {took:.0f} s", flush=True)
    return failed


def one(name: str, runs: int, seed: int, corpus: Path) -> None:
    """Fuzz one decoder in this process, which ends with it."""
    import atheris

    from fuzz.json_mutation import mutated

    with atheris.instrument_imports(include=["tinkex", "json"], enable_loader_override=False):
        from fuzz.decoders import DECODERS
    decoder = DECODERS[name]
    folder = corpus / name
    folder.mkdir(parents=True, exist_ok=True)
    for example in decoder.examples:
        (folder / hashlib.sha1(example).hexdigest()).write_bytes(example)

    def attempt(data: bytes) -> None:
        try:
            decoder.read(data)
        except decoder.refusals:
            return

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        dice = random.Random(seed)
        if decoder.is_json and dice.random() < 0.7:
            data = mutated(data, dice)
        return bytes(atheris.Mutate(data, max_size)) if dice.random() < 0.4 else data[:max_size]

    limits = [f"-timeout={_HANG_S}", f"-rss_limit_mb={_MEMORY_MB}", f"-max_len={_LONGEST}"]
    found = f"-artifact_prefix={corpus}/found-{name}-"
    program = ["fuzz", f"-runs={runs}", f"-seed={seed}", *limits, found, str(folder)]
    atheris.Setup(program, attempt, custom_mutator=mutate if decoder.is_json else None)
    atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        one(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
    else:
        sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))
