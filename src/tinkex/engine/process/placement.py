"""Chooses device, dtype and sizes of an engine from its settings and the hardware."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

from tinkex.engine.cpu.bf16_probe import cpu_survives_bfloat16
from tinkex.engine.errors import ModelError
from tinkex.engine.limits import Limits
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.loading import Base
from tinkex.engine.model.matrices.float8 import Float8, float8_works
from tinkex.engine.model.matrices.steady import Steady
from tinkex.engine.model.sizes import WEIGHTS_SHARE
from tinkex.engine.sampling.cache.kv_cache import page_bytes
from tinkex.engine.sampling.cache.recurrent_states import state_bytes
from tinkex.engine.sampling.limits import SamplerLimits
from tinkex.engine.settings import WorkerConfig

_CPU_ADAPTER_BYTES = 2 << 30
_CPU_KV_BYTES = 4 << 30
_CPU_KV_SHARE = 0.125
_LEAST_STEP_TOKENS, _MOST_STEP_TOKENS = 256, 4096
_STEP_WORK = 1_000_000_000
"""Parameters times tokens that a step on a CPU may take: about 25 ms of one core."""


class _Shares(NamedTuple):
    """Shares of what is free on a GPU once the model is loaded. The rest is for captured graphs,
    logits and libraries."""

    cache: float
    adapters: float
    activations: float
    runs: float


_DENSE = _Shares(cache=0.25, adapters=0.08, activations=0.35, runs=0.25)
_MIXTURES = _Shares(cache=0.14, adapters=0.08, activations=0.48, runs=0.22)
"""A pass of a mixture must be large before the device is busy with it: with half as many passes a
step of Qwen3.6-35B-A3B took 889 ms instead of 1,564 (`benchmarks/gpu_families.py`)."""

_HOST_RUN_SHARE = 0.4
"""Share of the host's available memory for idle runs."""

_GPU_LOGIT_ELEMENTS = 1 << 28

_SNAPSHOTS = 32
"""Kept states of recurrent layers, for prefixes that are found again."""

_BASES = {"fp8": Float8(narrow=True), "fp8-weights": Float8(narrow=False)}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Placement:
    device: torch.device
    dtype: torch.dtype
    base: Base | None = None


def choose_placement(config: WorkerConfig) -> Placement:
    """`auto` is bfloat16 on a GPU and float32 on a CPU, where whole steps are no faster in
    bfloat16 even if single products are."""
    device = _device(config.device)
    dtype = _dtype(config, device)
    base: Base | None = _base(config, device, dtype)
    return Placement(device, dtype, _steady(config, device, dtype) if config.steady else base)


def _dtype(config: WorkerConfig, device: torch.device) -> torch.dtype:
    if config.dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if config.dtype not in _DTYPES:
        known = ", ".join(("auto", *_DTYPES))
        raise ModelError(f"dtype: {config.dtype!r} is not known; choose one of {known}")
    if config.dtype == "bfloat16" and device.type == "cpu" and not cpu_survives_bfloat16():
        raise ModelError(
            "dtype: bfloat16 kills a process on this CPU; use float32, or set "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE before starting"
        )
    return _DTYPES[config.dtype]


def _base(config: WorkerConfig, device: torch.device, dtype: torch.dtype) -> Float8 | None:
    if config.base == "auto":
        return None
    if config.base not in _BASES:
        known = ", ".join(("auto", *_BASES))
        raise ModelError(f"base: {config.base!r} is not known; choose one of {known}")
    if not float8_works(device):
        raise ModelError(
            f"base: {config.base} needs a GPU of compute capability 8.9 or more, and Triton; "
            f"this is {_named(device)}: leave --base at auto"
        )
    if dtype != torch.bfloat16:
        raise ModelError(f"base: {config.base} goes with dtype bfloat16, not {config.dtype}")
    return _BASES[config.base]


def _steady(config: WorkerConfig, device: torch.device, dtype: torch.dtype) -> Steady | None:
    """Steady mode for the device; None where it takes no kernels of its own: on a CPU, training in
    float32 is steady anyway."""
    if config.base != "auto":
        raise ModelError(f"steady: goes with matrices in the dtype, not with --base {config.base}")
    if device.type == "cuda":
        if find_spec("triton") is None:
            raise ModelError("steady: needs Triton on a GPU; install it, or leave --steady out")
        return Steady()
    if dtype != torch.float32:
        raise ModelError("steady: a CPU trains steadily in float32 only; leave --dtype at auto")
    return None


def _named(device: torch.device) -> str:
    if device.type != "cuda":
        return f"a {device.type}"
    return "{} of {}.{}".format(
        torch.cuda.get_device_name(device), *torch.cuda.get_device_capability(device)
    )


def weights_room(config: WorkerConfig, device: torch.device) -> int:
    """Bytes that a model may take here: all of one device's memory, less what other parts need."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory * WEIGHTS_SHARE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(memory * WEIGHTS_SHARE * _share(config))


def training_limits(config: WorkerConfig, decoder: Decoder) -> Limits:
    device = decoder.device
    tokens = config.micro_batch_tokens or (8192 if device.type == "cuda" else 2048)
    limits = Limits(
        max_rank=config.max_rank,
        max_runs=config.max_runs,
        micro_batch_tokens=tokens,
        run_bytes=config.run_bytes,
        host_run_bytes=config.host_run_bytes or 0,
    )
    if device.type != "cuda":
        return limits
    free, _ = torch.cuda.mem_get_info(device)
    shares = _shares(decoder.config)
    return replace(
        limits,
        activation_bytes=int(free * shares.activations),
        logit_elements=_GPU_LOGIT_ELEMENTS,
        run_bytes=config.run_bytes or int(free * shares.runs),
        host_run_bytes=_host_run_bytes(config),
    )


def _shares(model: ModelConfig) -> _Shares:
    return _MIXTURES if model.mixes else _DENSE


def _host_run_bytes(config: WorkerConfig) -> int:
    if config.host_run_bytes is not None:
        return config.host_run_bytes
    return int(_available_bytes() * _HOST_RUN_SHARE * _share(config))


def _available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Available memory of the host: what is free, and file pages that can be read again."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvail"))
    except (OSError, StopIteration):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_plan(decoder: Decoder, limits: Limits, sampling: SamplerLimits) -> dict[str, int]:
    """An engine's memory by purpose, in bytes. Parts without a bound are not in it."""
    states = sampling.rows + sampling.snapshots
    cache = sampling.pages * page_bytes(decoder.config, decoder.dtype)
    plan = {
        "model": decoder.nbytes,
        "sampling cache": cache + states * state_bytes(decoder.config, decoder.dtype),
        "samplers' adapters": sampling.adapter_bytes,
        "a training pass": limits.activation_bytes,
    }
    if limits.run_bytes is not None:
        plan |= {"runs": limits.run_bytes, "runs in the host's memory": limits.host_run_bytes}
    return plan


_RECOMPUTED = 2
"""A layer that is computed again is there with its gradients, which are about as large."""

_AROUND_LAYERS = 6
"""Rows of the stream's width outside the layers: embedded, normed, gradients, logits' inputs."""


def longest_training(decoder: Decoder, limits: Limits) -> int:
    """Tokens of a sequence that a training pass has planned memory for, with every layer's input
    kept and layers recomputed. A longer one is tried, and may find no room."""
    config = decoder.config
    if decoder.device.type != "cuda":
        return config.max_context
    layers = [layer.kept(config.hidden_size) for layer in config.layers]
    stream = (len(layers) + _AROUND_LAYERS) * config.hidden_size
    numbers = stream + _RECOMPUTED * max(layers)
    return min(config.max_context, limits.activation_bytes // (numbers * decoder.dtype.itemsize))


def sampling_limits(config: WorkerConfig, decoder: Decoder) -> SamplerLimits:
    gpu = decoder.device.type == "cuda"
    size = page_bytes(decoder.config, decoder.dtype)
    memory = config.kv_bytes or _kv_bytes(decoder, _share(config))
    if memory < size:
        raise ModelError(f"kv_bytes: {memory} is less than one page, {size} bytes")
    rows = config.max_rows or (256 if gpu else 64)
    state = state_bytes(decoder.config, decoder.dtype)
    if state:
        # States of recurrent layers are large, and pages of the few other layers small.
        rows = max(1, min(rows, memory * 3 // 4 // state - _SNAPSHOTS))
        memory -= min((rows + _SNAPSHOTS) * state, memory - size)
    return SamplerLimits(
        pages=memory // size,
        max_context=_context(config, decoder.config),
        rows=rows,
        snapshots=_SNAPSHOTS,
        step_tokens=config.step_tokens or _step_tokens(decoder),
        adapter_bytes=config.adapter_bytes or _adapter_bytes(decoder),
    )


def _step_tokens(decoder: Decoder) -> int:
    """A step's tokens hold up everybody's next token: on a CPU no more than take about as long as
    a few such steps, but of a small model all prompts of a burst."""
    if decoder.device.type == "cuda":
        return _MOST_STEP_TOKENS
    afford = _STEP_WORK // decoder.parameters
    return max(_LEAST_STEP_TOKENS, min(afford, _MOST_STEP_TOKENS))


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
        raise ModelError(
            f"device: {name!r} was asked for, but torch finds no GPU here: leave --device at auto, "
            "or install a torch that goes with this machine's driver"
        )
    return device


def memory_of(device: torch.device) -> int:
    """The total memory of a device, whoever uses it."""
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        return int(total)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _share(config: WorkerConfig) -> float:
    if not 0 < config.memory_share <= 1:
        raise ModelError(f"memory_share: {config.memory_share} is not above 0 and at most 1")
    return config.memory_share


def _adapter_bytes(decoder: Decoder) -> int:
    """Budget for dozens of adapters: one that is dropped while others sample from theirs is read
    again from its files each time, and everybody waits."""
    if decoder.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(decoder.device)
        return int(free * _shares(decoder.config).adapters)
    return _CPU_ADAPTER_BYTES


def _kv_bytes(decoder: Decoder, share: float) -> int:
    if decoder.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(decoder.device)
        return int(free * _shares(decoder.config).cache)
    return min(_CPU_KV_BYTES, int(memory_of(decoder.device) * _CPU_KV_SHARE * share))
