"""Makes a worker from its settings: the model loaded, limits fitted to the device, kernels warm."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from tinkex.engine.adapters.layout import AdapterLayout, AdapterWeights
from tinkex.engine.adapters.peft_files import read_adapter
from tinkex.engine.messages import LoraSpec, Ready
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.process.device_clock import Stopwatch, marks_of
from tinkex.engine.process.fetched_weights import Fetch, FetchedWeights
from tinkex.engine.process.interleave import Interleave
from tinkex.engine.process.placement import (
    choose_placement,
    memory_of,
    memory_plan,
    sampling_limits,
    training_limits,
)
from tinkex.engine.process.warmup import warm_up
from tinkex.engine.process.worker import Emit, Worker
from tinkex.engine.sampling.cache.kv_cache import page_bytes
from tinkex.engine.sampling.model_end import read_ending
from tinkex.engine.sampling.sampler import Sampler
from tinkex.engine.settings import WorkerConfig
from tinkex.engine.training.trainer import Trainer


def build_worker(config: WorkerConfig, emit: Emit, fetch: Fetch | None = None) -> Worker:
    """Load the model and emit `Ready`. Raises `ModelError` where the folder cannot be served.
    `fetch` gets weights that this host lacks; without it they come by their links."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    placement = choose_placement(config)
    folder = Path(config.model)
    decoder = load_decoder(folder, placement.device, placement.dtype)

    def read(path: str) -> AdapterWeights:
        return read_adapter(Path(path), placement.device)

    limits, sampling = training_limits(config, placement.device), sampling_limits(config, decoder)
    trainer = Trainer(decoder, limits)
    sampler = Sampler(decoder, read_ending(folder), sampling, read)
    if placement.device.type == "cuda":
        warm_up(trainer, sampler)
    emit(
        Ready(
            architecture=_architecture(folder, decoder.config.family),
            vocab_size=decoder.config.vocab_size,
            max_context=sampler.context,
            parameters=decoder.parameters,
            device=str(placement.device),
            dtype=str(placement.dtype).removeprefix("torch."),
            max_rank=config.max_rank,
            page_bytes=page_bytes(decoder.config, decoder.dtype),
            memory_bytes=memory_of(placement.device),
            memory_plan=memory_plan(decoder, limits, sampling),
            run_room=trainer.residency.room,
            rank_bytes=trainer.residency.bytes_of(AdapterLayout(decoder.config, LoraSpec(1))),
        )
    )
    stopwatch = Stopwatch(marks_of(placement.device))
    policy = Interleave(config.sampling_share)
    return Worker(trainer, sampler, policy, stopwatch, emit, FetchedWeights(fetch))


def _architecture(folder: Path, family: str) -> str:
    names = json.loads((folder / "config.json").read_text()).get("architectures") or [family]
    return str(names[0])
