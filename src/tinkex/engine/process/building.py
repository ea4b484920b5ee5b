"""Makes a worker from its settings: the model loaded, ranks joined, limits fitted, kernels warm."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import torch

from tinkex.engine.adapters.layout import AdapterLayout, AdapterWeights, share_of_weights
from tinkex.engine.adapters.peft_files import read_adapter
from tinkex.engine.errors import ModelError
from tinkex.engine.messages import LoraSpec, Ready
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.model.matrices.steady import settle
from tinkex.engine.model.sizes import sizes_of
from tinkex.engine.process.device_clock import Stopwatch, marks_of
from tinkex.engine.process.fetched_weights import Fetch, FetchedWeights
from tinkex.engine.process.interleave import Interleave
from tinkex.engine.process.placement import (
    choose_placement,
    longest_training,
    memory_of,
    memory_plan,
    sampling_limits,
    training_limits,
    weights_room,
)
from tinkex.engine.process.ranks import Follower, Leader, Rank, agreed_limits, join
from tinkex.engine.process.start_stages import StartStages
from tinkex.engine.process.warmup import warm_up
from tinkex.engine.process.worker import Emit, Worker
from tinkex.engine.sampling.cache.kv_cache import page_bytes
from tinkex.engine.sampling.model_end import read_ending
from tinkex.engine.sampling.sampler import Sampler
from tinkex.engine.settings import WorkerConfig
from tinkex.engine.training.trainer import Trainer

logger = logging.getLogger(__name__)


def build_worker(
    config: WorkerConfig, emit: Emit, fetch: Fetch | None = None, *, warm: bool = True
) -> Worker:
    """Load the model and emit `Ready`, on a GPU after a warm-up. Raises `ModelError` where the
    folder cannot be served. `fetch` gets weights that this host lacks; without it they come by
    their links."""
    leader = None if config.ranks == 1 else Leader(config)
    worker = _build(config, emit, leader, fetch, warm=warm)
    worker.leader = leader
    return worker


def follow(config: WorkerConfig, follower: Follower) -> None:
    """Be another rank than the first, until the first one ends."""
    worker = _build(config, lambda event: None, follower)
    worker.follow(follower)


def _build(
    config: WorkerConfig, emit: Emit, rank: Rank | None, fetch: Fetch | None = None, *,
    warm: bool = True,
) -> Worker:  # fmt: skip
    stages = StartStages()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    placement = choose_placement(config)
    if rank is not None:
        placement = replace(placement, device=join(rank, placement.device))
    stages.ended("device")
    folder = Path(config.model)
    ranks, dealt = None if rank is None else rank.ranks, bool(config.whole_experts)
    device, dtype, base = placement.device, placement.dtype, placement.base
    packed = None if config.packed_experts is None else bool(config.packed_experts)
    decoder = load_decoder(
        folder, device, dtype, ranks, base, whole_experts=dealt, packed=packed,
        room=weights_room(config, device),
    )  # fmt: skip
    if config.wide_stream:
        widen_stream(decoder)
    stages.ended("weights")

    def read(path: str) -> AdapterWeights:
        return share_of_weights(read_adapter(Path(path), placement.device), decoder.config)

    limits = agreed_limits(training_limits(config, decoder), decoder.config)
    sampling = agreed_limits(sampling_limits(config, decoder), decoder.config)
    trainer = Trainer(decoder, limits)
    sampler = Sampler(decoder, read_ending(folder), sampling, read)
    stages.ended("trainer and sampler")
    if placement.device.type == "cuda":
        if decoder.steady:
            settle(decoder.weights)
            stages.ended("steady products")
        if warm or rank is not None:
            warm_up(trainer, sampler, stages)
    logger.info("start: %s", stages)
    shard = decoder.config.shard
    whole = decoder.config if shard is None else shard.whole
    emit(
        Ready(
            architecture=_architecture(folder, decoder.config.family),
            vocab_size=decoder.config.vocab_size,
            max_context=sampler.context,
            parameters=sizes_of(whole).parameters,
            device=str(placement.device),
            dtype=str(placement.dtype).removeprefix("torch."),
            max_rank=config.max_rank,
            page_bytes=page_bytes(decoder.config, decoder.dtype),
            memory_bytes=memory_of(placement.device),
            memory_plan=memory_plan(decoder, limits, sampling),
            run_room=trainer.residency.room,
            rank_bytes=trainer.residency.bytes_of(AdapterLayout(decoder.config, LoraSpec(1))),
            steady=decoder.steady,
            max_training=longest_training(decoder, limits),
            is_away=fetch is not None,
            max_data=limits.max_data,
        )
    )
    stopwatch = Stopwatch(marks_of(placement.device))
    policy = Interleave(config.sampling_share)
    return Worker(trainer, sampler, policy, stopwatch, emit, FetchedWeights(fetch))


def widen_stream(decoder: Decoder) -> None:
    """Keep the residual stream in float32. Every block adds to it, and rounded each time it is the
    largest part of what sets logprobs of training and of sampling apart."""
    if decoder.steady:
        raise ModelError(
            "wide_stream: with --steady logprobs of training and of sampling are equal as they "
            "are; leave one of the two out"
        )
    decoder.stream = torch.promote_types(decoder.dtype, torch.float32)


def _architecture(folder: Path, family: str) -> str:
    names = json.loads((folder / "config.json").read_text()).get("architectures") or [family]
    return str(names[0])
