"""Tokens per second of decoding on the CPU, against `transformers.generate` and against ourselves.

Whole requests, SmolLM2-135M in float32: a question and 64 new tokens. Both sides get the same
questions, each a new one, so no prefix is reused but the template's. How much rows that guess save
depends on the text: prompts of random ids, answered at temperature 1, show what is left when no
guess is right. Rounds of all programs take turns; medians.

    python benchmarks/engine_decode.py
"""

from __future__ import annotations

import os

from tinkex.engine.process.parent import ENVIRONMENT

# As in an engine's own process, and for both sides; read when torch loads.
os.environ.update(ENVIRONMENT | os.environ)

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from report import Row, write
from tokenizers import Tokenizer

from tinkex.engine.adapters.peft_files import read_adapter
from tinkex.engine.builtin.gguf import ensure_smollm2
from tinkex.engine.messages import CreateRun, LoraSpec, Sample, SamplingParams
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.sampling.limits import SamplerLimits
from tinkex.engine.sampling.model_end import read_ending
from tinkex.engine.sampling.sampler import Sampler
from tinkex.engine.training.run import write_snapshot
from tinkex.engine.training.trainer import Trainer

Tokens: TypeAlias = NDArray[np.int32]

CACHE = Path.home() / ".cache" / "tinkex" / "models"
NEW, PARALLEL, ADAPTERS, ROUNDS = 64, 16, 4, 5
SUBJECTS = (
    "photosynthesis", "the French Revolution", "binary search", "plate tectonics", "inflation",
    "the water cycle", "neural networks", "the moons of Jupiter", "bread baking", "vaccination",
    "the Silk Road", "compound interest", "black holes", "the rules of chess", "tidal power",
    "Gothic cathedrals",
)  # fmt: skip
ASKS = (
    "Explain {} to a child.",
    "Write a short article about {}.",
    "List five facts about {}.",
    "What is the most common mistake people make about {}?",
    "Write a poem about {}.",
    "Compare {} with something similar.",
)


class Programs:
    """What is compared. Each returns after its requests are served."""

    def __init__(self, folder: Path) -> None:
        transformers.logging.set_verbosity_error()
        self._rng = np.random.default_rng(0)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
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

    def generate(self, round_: int) -> None:
        ids = torch.from_numpy(self._question(round_, 0).astype(np.int64))[None]
        with torch.inference_mode():
            self._model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False,
                max_new_tokens=NEW, min_new_tokens=NEW,
            )  # fmt: skip

    def answer(self, round_: int, requests: int, adapters: int) -> None:
        greedy = SamplingParams(max_tokens=NEW, temperature=0.0, stop=())
        for index in range(requests):
            weights = f"w{index % adapters}" if adapters else ""
            question = self._question(round_, index)
            self._sampler.submit(Sample(str(index), weights, question, greedy))
        self._finish()

    def babble(self, round_: int) -> None:
        """Nothing in this repeats, so no guess is ever right."""
        prompt = self._rng.integers(100, 40_000, 48).astype(np.int32)
        params = SamplingParams(max_tokens=NEW, temperature=1.0, seed=round_, stop=())
        self._sampler.submit(Sample("babble", "", prompt, params))
        self._finish()

    def _finish(self) -> None:
        while self._sampler.busy:
            self._sampler.step()
        self._sampler.pool.forget_all()

    def _question(self, round_: int, index: int) -> Tokens:
        ask = ASKS[round_ % len(ASKS)].format(SUBJECTS[(round_ + index) % len(SUBJECTS)])
        text = f"<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n"
        return np.array(self._tokenizer.encode(text).ids, np.int32)

    def _add_adapter(self, trainer: Trainer, name: str) -> None:
        trainer.create_run(CreateRun("", name, LoraSpec(rank=16, seed=1)))
        with tempfile.TemporaryDirectory() as folder:
            write_snapshot(trainer.snapshot(name, False), folder)
            self._sampler.versions.add(name, folder)


def rates(programs: dict[str, tuple[int, Callable[[int], None]]]) -> dict[str, float]:
    """Median tokens per second by name, the programs taking turns; the first round is warm-up."""
    found: dict[str, list[float]] = {name: [] for name in programs}
    for round_ in range(ROUNDS + 1):
        for name, (tokens, program) in programs.items():
            start = time.perf_counter()
            program(round_)
            found[name].append(tokens / (time.perf_counter() - start))
    return {name: statistics.median(values[1:]) for name, values in found.items()}


def main() -> None:
    programs = Programs(ensure_smollm2(CACHE))
    found = rates(
        {
            "generate": (NEW, programs.generate),
            "one": (NEW, lambda round_: programs.answer(round_, 1, 0)),
            "babble": (NEW, programs.babble),
            "one tuned": (NEW, lambda round_: programs.answer(round_, 1, 1)),
            "many": (PARALLEL * NEW, lambda round_: programs.answer(round_, PARALLEL, 0)),
            "many tuned": (
                PARALLEL * NEW,
                lambda round_: programs.answer(round_, PARALLEL, ADAPTERS),
            ),
        }
    )
    one = found["one"]

    def row(what: str, name: str, against: float, target: str = "") -> Row:
        return Row(what, found[name], "tokens/s", against, higher_is_better=True, target=target)

    rows = [
        row("one request, against generate", "one", found["generate"], "≥2×"),
        row("one request where no guess is right, against generate", "babble", found["generate"]),
        row("one request with an adapter of rank 16, against generate", "one tuned",
            found["generate"]),
        row(f"{PARALLEL} requests at once, against one", "many", one, "≥5×"),
        row(f"{PARALLEL} requests over {ADAPTERS} adapters, against one", "many tuned", one),
    ]  # fmt: skip
    note = (
        f"Questions in chat form, greedy answers of {NEW} tokens, prefill included on both sides; "
        f"medians of {ROUNDS} rounds taken in turns. Without company, rows that would only pad a "
        "product try guesses from the text so far; the tokens are the same with and without."
    )
    write("engine_decode", "Decoding on the CPU, SmolLM2-135M, float32", rows, note)


if __name__ == "__main__":
    main()
