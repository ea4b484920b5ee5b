"""What a grammar costs: the time of a decode step with JSON of a schema enforced, against without.

The same prompts, as many tokens, rounds taking turns, medians. The schema's answer never ends
within them, so that every step of every row has a mask. On a CPU SmolLM2-135M; on a GPU the shape
of an 8B model with seeded weights and SmolLM2's tokenizer. `half`: every other row has a grammar.

    python benchmarks/engine_grammar.py [--rows 1 8 32] [--rounds 3] [--tokenizer tokenizer.json]
"""

from __future__ import annotations

import os

from tinkex.engine.process.parent import ENVIRONMENT

os.environ.update(ENVIRONMENT | os.environ)

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from engine_gpu import EIGHT_BILLION
from report import Row, write
from seeded_model import seeded_decoder
from tokenizers import Tokenizer

from tinkex.engine.adapters.layout import AdapterWeights
from tinkex.engine.builtin.gguf import ensure_smollm2
from tinkex.engine.messages import AnswerForm, Grammar, Sample, SamplingParams
from tinkex.engine.model.families import parse_config
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.sampling.limits import SamplerLimits
from tinkex.engine.sampling.model_end import Ending, read_ending
from tinkex.engine.sampling.request import Branch
from tinkex.engine.sampling.sampler import Sampler

CACHE = Path.home() / ".cache" / "tinkex" / "models"
PROMPT, NEW, ROUNDS = 64, 48, 3
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "born": {"type": "string", "format": "date"},
        "languages": {"type": "array", "items": {"enum": ["en", "de", "fr"]}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "number": {"type": "integer"}},
            "required": ["street", "number"],
        },
    },
    "required": ["name", "born", "languages", "address"],
}
ENDLESS = Grammar(
    (AnswerForm(schema=json.dumps({"type": "array", "items": PERSON, "minItems": 1000})),)
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tokenizer", type=Path, help="on a GPU: of SmolLM2")
    asked = parser.parse_args()
    sampler = gpu_sampler(asked.tokenizer) if torch.cuda.is_available() else cpu_sampler()
    compile_ms = compiled(sampler)
    rows: list[Row] = []
    for count in asked.rows:
        plain: list[float] = []
        half: list[float] = []
        bound: list[float] = []
        for turn in range(asked.rounds + 1):
            for found, every in ((plain, 0), (half, 2), (bound, 1)):
                if every == 2 and count == 1:
                    continue
                found.append(step_ms(sampler, turn, count, every))
        base = statistics.median(plain[1:])
        rows.append(row(f"{count} rows, a grammar each", bound, base))
        if count > 1:
            rows.append(row(f"{count} rows, half of them with a grammar", half, base))
    name = "engine_grammar_gpu" if torch.cuda.is_available() else "engine_grammar"
    first, again = compile_ms
    note = f"A new grammar, tried and compiled: {first:.0f} ms; one that was had: {again:.1f} ms."
    write(name, "Time of a decode step with a grammar, against without", rows, note)
    sampler.grammars.close()


def row(what: str, found: list[float], base: float) -> Row:
    return Row(what, statistics.median(found[1:]), "ms", against=base, target="≥ 0.95×")


def step_ms(sampler: Sampler, turn: int, count: int, every: int) -> float:
    """Milliseconds of a step in which all decode; every n-th has a grammar."""
    numbers = np.random.default_rng(turn)
    params = SamplingParams(max_tokens=NEW, seed=turn, stop=())
    for index in range(count):
        prompt = numbers.integers(0, 40_000, PROMPT).astype(np.int32)
        grammar = ENDLESS if every and index % every == 0 else None
        sampler.submit(Sample(str(index), "", prompt, params, grammar=grammar))
    sampler.step()
    while any(not branch.started for branch in branches(sampler)):
        sampler.step()
    steps, begun = 0, time.perf_counter()
    while sampler.busy:
        sampler.step()
        steps += 1
    return 1e3 * (time.perf_counter() - begun) / steps


def branches(sampler: Sampler) -> list[Branch]:
    return [*sampler.scheduler.waiting, *sampler.scheduler.active]


def compiled(sampler: Sampler) -> tuple[float, float]:
    """Milliseconds until a grammar is there, new and again; the process for it runs already."""
    other = Grammar((AnswerForm(schema='{"type": "integer"}'),))
    sampler.grammars.compiled(other, "").result()
    took = []
    for _ in range(2):
        begun = time.perf_counter()
        sampler.grammars.compiled(ENDLESS, "").result()
        took.append(1e3 * (time.perf_counter() - begun))
    return took[0], took[1]


def cpu_sampler() -> Sampler:
    folder = ensure_smollm2(CACHE)
    limits = SamplerLimits(pages=1024, max_context=2048)
    return Sampler(load_decoder(folder), read_ending(folder), limits, _no_adapters)


def gpu_sampler(tokenizer: Path) -> Sampler:
    device = torch.device("cuda")
    decoder = seeded_decoder(parse_config(EIGHT_BILLION), device, torch.bfloat16)
    ending = Ending((2,), Tokenizer.from_file(str(tokenizer)))
    limits = SamplerLimits(pages=2048, max_context=2048, rows=64, step_tokens=4096)
    sampler = Sampler(decoder, ending, limits, _no_adapters)
    while sampler.prepare():
        pass
    return sampler


def _no_adapters(path: str) -> AdapterWeights:
    raise NotImplementedError(path)


if __name__ == "__main__":
    main()
