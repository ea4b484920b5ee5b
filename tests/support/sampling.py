"""Samplers on tiny models, and commands for them."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tinkex.engine.adapters.layout import Adapter, AdapterLayout, AdapterWeights, initial_weights
from tinkex.engine.adapters.peft_files import read_adapter, write_adapter
from tinkex.engine.builtin.tiny import ensure_tiny
from tinkex.engine.messages import (
    Done,
    Event,
    LoraSpec,
    Progress,
    Sample,
    SampleResult,
    SamplingParams,
)
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.pieces import at_once
from tinkex.engine.sampling.limits import SamplerLimits
from tinkex.engine.sampling.model_end import read_ending
from tinkex.engine.sampling.sampler import Sampler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@functools.cache
def tiny_folder(name: str = "tinkex/tiny-llama") -> Path:
    cache = Path(tempfile.mkdtemp(prefix="tinkex-tiny-"))
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    return ensure_tiny(name, cache)


@functools.cache
def tiny_decoder(name: str = "tinkex/tiny-llama") -> Decoder:
    """Float32 on any device, so that equality can be asked for."""
    return load_decoder(tiny_folder(name), DEVICE, torch.float32)


def make_sampler(decoder: Decoder | None = None, folder: Path | None = None, **limits: int) -> Any:
    settings = {"pages": 256, "max_context": 1024, "rows": 64, "step_tokens": 64} | limits
    return Sampler(
        decoder or tiny_decoder(),
        read_ending(folder or tiny_folder()),
        SamplerLimits(**settings),
        lambda path: read_adapter(Path(path), DEVICE),
    )


def write_random_adapter(
    folder: Path, seed: int, rank: int = 4, size: float = 0.3, *,
    model: str = "tinkex/tiny-llama", **parts: bool,
) -> Path:  # fmt: skip
    """An adapter for a tiny model whose products matter."""
    layout = AdapterLayout(tiny_decoder(model).config, LoraSpec(rank, seed=seed, **parts))
    flat = at_once(initial_weights(layout, seed, torch.device("cpu")))
    generator = torch.Generator().manual_seed(seed)
    for factors in layout.factors(flat).values():
        for b in factors.b:
            b.copy_(torch.randn(b.shape, generator=generator) * size / rank)
    folder.mkdir(parents=True, exist_ok=True)
    weights: AdapterWeights = Adapter(layout, flat, torch.float32).weights()
    write_adapter(weights, folder)
    return folder


def prompt_of(seed: int, length: int, vocab: int = 128) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, vocab, length).astype(np.int32)


def sample(
    op: str, prompt: Sequence[int] | NDArray[np.int32], *, weights: str = "",
    num_samples: int = 1, stream: bool = False, lane: str = "", asks: dict[str, Any] | None = None,
    **params: Any,
) -> Sample:  # fmt: skip
    settings = {"max_tokens": 8, "seed": 0, "stop": ()} | params
    ids = np.asarray(prompt, dtype=np.int32)
    return Sample(
        op, weights, ids, SamplingParams(**settings), num_samples, stream=stream, lane=lane,
        **(asks or {}),
    )  # fmt: skip


def events_of(sampler: Sampler, commands: Iterable[Sample]) -> list[Event]:
    """Every event until all are answered."""
    for command in commands:
        sampler.submit(command)
    events: list[Event] = []
    while sampler.busy:
        events.extend(sampler.step())
    return events


def results_of(sampler: Sampler, *commands: Sample) -> list[SampleResult]:
    """The results in the order of the commands; any failure is an assertion."""
    found: dict[str, SampleResult] = {}
    for event in events_of(sampler, commands):
        if isinstance(event, Progress):
            continue
        assert isinstance(event, Done), event
        assert isinstance(event.result, SampleResult)
        found[event.op] = event.result
    return [found[command.op] for command in commands]


def compiled_results_of(sampler: Sampler, *commands: Sample) -> list[SampleResult]:
    """Like `results_of`, of commands with grammars: all begin when all of these are compiled."""
    woken = threading.Semaphore(0)
    found: dict[str, SampleResult] = {}
    for command in commands:
        sampler.submit(command, woken.release)
    for _ in [command for command in commands if command.grammar is not None]:
        assert woken.acquire(timeout=120)
    while sampler.busy:
        for event in sampler.step():
            assert isinstance(event, Done), event
            assert isinstance(event.result, SampleResult)
            found[event.op] = event.result
    return [found[command.op] for command in commands]


def tokens_of(result: SampleResult) -> list[list[int]]:
    return [sequence.tokens.tolist() for sequence in result.sequences]
