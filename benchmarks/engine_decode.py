"""Tokens per second of decoding on the CPU, against `transformers.generate` and against ourselves.

Whole requests, SmolLM2-135M in float32: a prompt of 64 tokens and 64 new ones. Fresh prompts every
time, so nothing is reused. Rounds of all programs take turns; medians.

    python benchmarks/engine_decode.py
"""

from __future__ import annotations

import os

# As in an engine's own process, and for both sides: threads that wait do not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from report import Row, write

from tinkex.engine.export import read_adapter
from tinkex.engine.messages import CreateRun, LoraSpec, Sample, SamplingParams, SaveRun
from tinkex.engine.model.gguf import ensure_smollm2
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.sampling.ending import read_ending
from tinkex.engine.sampling.sampler import Sampler, SamplerLimits
from tinkex.engine.trainer import Trainer

CACHE = Path.home() / ".cache" / "tinkex" / "models"
PROMPT, NEW, PARALLEL, ADAPTERS, ROUNDS = 64, 64, 16, 4, 3


class Programs:
    """What is compared. Each returns after its requests are served."""

    def __init__(self, folder: Path) -> None:
        transformers.logging.set_verbosity_error()
        self._rng = np.random.default_rng(0)
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32
        ).eval()
        decoder = load_decoder(folder)
        self._sampler = Sampler(
            decoder,
            read_ending(folder),
            SamplerLimits(pages=1024, max_context=8192),
            lambda path: read_adapter(Path(path)),
        )
        trainer = Trainer(decoder)
        for index in range(ADAPTERS):
            self._add_adapter(trainer, f"w{index}")

    def generate(self) -> None:
        ids = torch.from_numpy(self._prompt().astype(np.int64))[None]
        with torch.inference_mode():
            self._model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False,
                max_new_tokens=NEW, min_new_tokens=NEW,
            )  # fmt: skip

    def sample(self, requests: int, adapters: int) -> None:
        for index in range(requests):
            weights = f"w{index % adapters}" if adapters else ""
            params = SamplingParams(max_tokens=NEW, temperature=0.0, stop=())
            self._sampler.submit(Sample(str(index), weights, self._prompt(), params))
        while self._sampler.busy:
            self._sampler.step()

    def _prompt(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        return self._rng.integers(100, 40_000, PROMPT).astype(np.int32)

    def _add_adapter(self, trainer: Trainer, name: str) -> None:
        trainer.create_run(CreateRun("", name, LoraSpec(rank=16, seed=1)))
        with tempfile.TemporaryDirectory() as folder:
            trainer.save_run(SaveRun("", name, folder, False))
            self._sampler.versions.add(name, folder)


def rates(programs: dict[str, tuple[int, Callable[[], None]]]) -> dict[str, float]:
    """Median tokens per second by name, the programs taking turns; the first round is warm-up."""
    found: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(ROUNDS + 1):
        for name, (tokens, program) in programs.items():
            start = time.perf_counter()
            program()
            found[name].append(tokens / (time.perf_counter() - start))
    return {name: statistics.median(values[1:]) for name, values in found.items()}


def main() -> None:
    programs = Programs(ensure_smollm2(CACHE))
    found = rates(
        {
            "generate": (NEW, programs.generate),
            "one": (NEW, lambda: programs.sample(1, 0)),
            "one tuned": (NEW, lambda: programs.sample(1, 1)),
            "many": (PARALLEL * NEW, lambda: programs.sample(PARALLEL, 0)),
            "many tuned": (PARALLEL * NEW, lambda: programs.sample(PARALLEL, ADAPTERS)),
        }
    )
    one = found["one"]

    def row(what: str, name: str, against: float, bar: str = "") -> Row:
        return Row(what, found[name], "tokens/s", against, higher_is_better=True, bar=bar)

    rows = [
        row("one request, against generate", "one", found["generate"], "≥2×"),
        row("one request with an adapter of rank 16, against generate", "one tuned",
            found["generate"]),
        row(f"{PARALLEL} requests at once, against one", "many", one, "≥5×"),
        row(f"{PARALLEL} requests over {ADAPTERS} adapters, against one", "many tuned", one),
    ]  # fmt: skip
    note = (
        f"Greedy, {PROMPT} tokens of prompt and {NEW} new ones, prefill included on both sides; "
        f"medians of {ROUNDS} rounds taken in turns."
    )
    write("engine_decode", "Decoding on the CPU, SmolLM2-135M, float32", rows, note)


if __name__ == "__main__":
    main()
