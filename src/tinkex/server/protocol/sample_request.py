"""An `asample` body, read and checked, as what the engine is asked. Knows nothing of who asks."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.messages import Csr, Sample, SamplingParams, Tensor
from tinkex.server.protocol.fields import Fields
from tinkex.server.refusals import Refusal
from tinkex.server.settings import Limits

_SEQ_LIMIT = 2**62
_SEED_LIMIT = 2**64 - 1
_TOKEN_LIMIT = 2**31 - 1
_TOPK_LIMIT = 1000
_STOPS_LIMIT = 4096
_CHUNKS = ("encoded_text", "image", "image_asset_pointer", "dmel")
_TARGETS = "target_prompt_logprobs"

_Integers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A sample to take. `command` still lacks its op, weights and lane; `digest` is of the
    meaning."""

    sampler_id: str
    seq_id: int
    command: Sample
    digest: bytes


def parse(body: bytes, samples_limit: int) -> SampleRequest:
    """Read a body; raises `Refusal` with the field that is wrong."""
    sampler_id, seq_id, command = read(Fields.parse(body), samples_limit)
    return SampleRequest(sampler_id, seq_id, command, _digest(body))


def read(fields: Fields, samples_limit: int = Limits().num_samples) -> tuple[str, int, Sample]:
    """(sampler, number, command) of a body's fields."""
    sampler_id = fields.text("sampling_session_id")
    seq_id = fields.integer("seq_id", low=0, high=_SEQ_LIMIT)
    prompt = _prompt(fields)
    targets = _given_targets(fields)
    command = Sample(
        op="",
        weights="",
        prompt=prompt,
        params=_params(fields),
        num_samples=fields.integer("num_samples", low=1, high=samples_limit, default=1),
        prompt_logprobs=fields.flag("prompt_logprobs", False),
        prompt_logprobs_last_n=fields.optional_integer(
            "prompt_logprobs_last_n", low=1, high=_TOKEN_LIMIT
        ),
        topk_prompt_logprobs=fields.integer(
            "topk_prompt_logprobs", low=0, high=_TOPK_LIMIT, default=0
        ),
        topk_sample_logprobs=fields.integer(
            "topk_sample_logprobs", low=0, high=_TOPK_LIMIT, default=0
        ),
        prompt_alt_tokens_k=fields.integer(
            "prompt_alt_tokens_k", low=0, high=_TOPK_LIMIT, default=0
        ),
    )
    fields.flag("record_stability_info", False)
    for name in ("base_model", "model_path"):
        if fields.has(name):
            raise Refusal(f"{name} belongs to create_sampling_session; a sample has a session")
    fields.finish()
    if not len(prompt):
        raise Refusal("prompt holds no tokens: give at least one")
    if targets is not None:
        command = replace(command, target_prompt_logprobs=_targets(targets, len(prompt)))
    return sampler_id, seq_id, command


def _digest(body: bytes) -> bytes:
    meaning = json.dumps(json.loads(body), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(meaning.encode(), digest_size=16).digest()


def _prompt(fields: Fields) -> NDArray[np.int32]:
    prompt = fields.nested("prompt")
    chunks = None if prompt is None else prompt.objects("chunks", limit=100_000)
    if prompt is None or chunks is None:
        raise Refusal("prompt.chunks is required")
    prompt.finish()
    arrays = [_chunk(chunk, index) for index, chunk in enumerate(chunks)]
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int32)


def _chunk(fields: Fields, index: int) -> NDArray[np.int32]:
    kind = fields.choice("type", _CHUNKS, "encoded_text")
    if kind != "encoded_text":
        where = f"prompt.chunks[{index}]"
        raise Refusal(f"{where} is of type {kind!r}: the served models read text only")
    tokens = fields.integers("tokens", low=0, high=_TOKEN_LIMIT, limit=10_000_000)
    fields.finish()
    return np.zeros(0, dtype=np.int32) if tokens is None else tokens.astype(np.int32)


def _params(fields: Fields) -> SamplingParams:
    given = fields.nested("sampling_params")
    if given is None:
        return SamplingParams()
    params = SamplingParams(
        max_tokens=given.optional_integer("max_tokens", low=0, high=_TOKEN_LIMIT),
        seed=given.optional_integer("seed", low=-(2**63), high=_SEED_LIMIT),
        stop=_stop(given.raw("stop")),
        temperature=given.number("temperature", low=0.0, high=1e6, default=1.0),
        top_k=given.integer("top_k", low=-1, high=_TOKEN_LIMIT, default=-1),
        top_p=given.number("top_p", low=0.0, high=1.0, default=1.0),
    )
    given.finish()
    return params


def _stop(value: Any) -> tuple[int, ...] | tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or len(value) > _STOPS_LIMIT:
        raise Refusal(f"sampling_params.stop must be text or a list of at most {_STOPS_LIMIT}")
    if all(isinstance(entry, str) and entry for entry in value):
        return tuple(value)
    if all(type(entry) is int and 0 <= entry <= _TOKEN_LIMIT for entry in value):
        return tuple(value)
    raise Refusal("sampling_params.stop must hold non-empty strings only, or token ids only")


@dataclass(frozen=True, slots=True)
class _Targets:
    """Target tokens as they were sent: each part sound, not yet that they fit each other."""

    data: _Integers
    shape: _Integers
    crow: _Integers | None
    col: _Integers | None


def _given_targets(fields: Fields) -> _Targets | None:
    given = fields.nested("target_prompt_logprobs")
    if given is None:
        return None
    given.choice("dtype", ("int64",))
    none = np.zeros(0, dtype=np.int64)
    data = given.integers("data", low=-1, high=_TOKEN_LIMIT, limit=50_000_000)
    shape = given.integers("shape", low=0, high=2**31, limit=2)
    targets = _Targets(
        data=none if data is None else data,
        shape=none if shape is None else shape,
        crow=given.integers("sparse_crow_indices", low=0, high=50_000_000, limit=10_000_000),
        col=given.integers("sparse_col_indices", low=0, high=2**31, limit=50_000_000),
    )
    given.finish()
    return targets


def _targets(given: _Targets, prompt_length: int) -> Tensor:
    values, shape = given.data, given.shape
    if len(shape) != 2 or int(shape[0]) != prompt_length - 1:
        raise Refusal(f"{_TARGETS}.shape must be [{prompt_length - 1}, K]: one row per later token")
    rows, columns = int(shape[0]), int(shape[1])
    if given.crow is None or given.col is None:
        if len(values) != rows * columns:
            raise Refusal(f"{_TARGETS}.data has {len(values)} cells, its shape {rows * columns}")
        return values.reshape(rows, columns)
    return _sparse(values, given.crow, given.col, (rows, columns))


def _sparse(values: _Integers, rows: _Integers, col: _Integers, shape: tuple[int, int]) -> Csr:
    ordered = len(rows) == shape[0] + 1 and bool(np.all(np.diff(rows) >= 0))
    fits = len(col) == len(values) and (not len(col) or int(col.max()) < shape[1])
    if not ordered or not fits or rows[0] != 0 or rows[-1] != len(values):
        raise Refusal(f"{_TARGETS}: the sparse indices do not fit the data and shape")
    return Csr(values, rows, col, shape)
