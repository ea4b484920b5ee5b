"""Chooses device, dtype and sizes for an engine from what it was asked for and what there is."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tinkex.engine.errors import ModelError
from tinkex.engine.limits import Limits
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.probe import cpu_prefers_bfloat16
from tinkex.engine.sampling.cache import page_bytes
from tinkex.engine.sampling.sampler import SamplerLimits
from tinkex.engine.settings import WorkerConfig

_CPU_KV_BYTES = 4 << 30
_CPU_KV_SHARE = 0.125
_GPU_KV_SHARE = 0.35
_GPU_ACTIVATION_SHARE = 0.4
_GPU_LOGIT_ELEMENTS = 1 << 28
"""Of what is free once the model is loaded; training's activations need the rest."""

_SMALL_MODEL = 8_000_000
"""Parameters below which waking a second thread costs more than it computes."""

_LARGE_MODEL_BYTES = 64 << 20

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Placement:
    device: torch.device
    dtype: torch.dtype


def choose_placement(config: WorkerConfig) -> Placement:
    device = _device(config.device)
    if config.dtype in _DTYPES:
        return Placement(device, _DTYPES[config.dtype])
    if config.dtype != "auto":
        known = ", ".join(("auto", *_DTYPES))
        raise ModelError(f"dtype: {config.dtype!r} is not known; choose one of {known}")
    fast = device.type == "cuda" or (
        _is_large(Path(config.model)) and cpu_prefers_bfloat16(config.probe_cache)
    )
    return Placement(device, torch.bfloat16 if fast else torch.float32)


def _is_large(folder: Path) -> bool:
    """Whether products take long enough for the dtype to matter, and for finding out."""
    files = folder.glob("*.safetensors")
    return sum(file.stat().st_size for file in files) >= _LARGE_MODEL_BYTES


def choose_threads(decoder: Decoder) -> int:
    """How many threads torch should use on the CPU."""
    return 1 if decoder.parameters < _SMALL_MODEL else torch.get_num_threads()


def training_limits(config: WorkerConfig, device: torch.device) -> Limits:
    tokens = config.micro_batch_tokens or (8192 if device.type == "cuda" else 2048)
    limits = Limits(max_rank=config.max_rank, max_runs=config.max_runs, micro_batch_tokens=tokens)
    if device.type != "cuda":
        return limits
    free, _ = torch.cuda.mem_get_info(device)
    kept = int(free * _GPU_ACTIVATION_SHARE)
    return replace(limits, activation_bytes=kept, logit_elements=_GPU_LOGIT_ELEMENTS)


def sampling_limits(config: WorkerConfig, decoder: Decoder) -> SamplerLimits:
    gpu = decoder.device.type == "cuda"
    size = page_bytes(decoder.config, decoder.dtype)
    memory = config.kv_bytes or _kv_bytes(decoder.device)
    if memory < size:
        raise ModelError(f"kv_bytes: {memory} is less than one page, {size} bytes")
    return SamplerLimits(
        pages=memory // size,
        max_context=_context(config, decoder.config),
        rows=config.max_rows or (256 if gpu else 64),
        step_tokens=config.step_tokens or (4096 if gpu else 256),
        adapter_bytes=config.adapter_bytes,
    )


def _context(config: WorkerConfig, model: ModelConfig) -> int:
    if config.max_context is None:
        return model.max_context
    if config.max_context > model.max_context:
        raise ModelError(
            f"max_context: {config.max_context} is more than the model's {model.max_context}"
        )
    return config.max_context


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"device: {name!r} is not known; use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device: {name!r} was asked for, but torch finds no GPU here")
    return device


def _kv_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * _GPU_KV_SHARE)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(_CPU_KV_BYTES, int(total * _CPU_KV_SHARE))
