"""An `asample` body, read and checked, as what the engine is asked. Knows nothing of who asks."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.messages import Csr, Sample, SamplingParams, Tensor
from tinkex.server.fields import Fields
from tinkex.server.refusals import Refusal

_SEQ_LIMIT = 2**63 - 1
_SEED_LIMIT = 2**64 - 1
_TOKEN_LIMIT = 2**31 - 1
_TOPK_LIMIT = 1000
_STOPS_LIMIT = 256


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A sample to take. `command` still lacks its op and weights; `digest` is of the meaning."""

    sampler_id: str
    seq_id: int
    command: Sample
    digest: bytes

    def addressed(self, op: str, weights: str, stream: bool) -> Sample:
        return replace(self.command, op=op, weights=weights, stream=stream)


def parse(body: bytes, samples_limit: int) -> SampleRequest:
    """Read a body; raises `Refusal` with the field that is wrong."""
    fields = Fields.parse(body)
    sampler_id = fields.text("sampling_session_id")
    seq_id = fields.integer("seq_id", low=0, high=_SEQ_LIMIT)
    prompt = _prompt(fields)
    params = _params(fields)
    command = Sample(
        op="",
        weights="",
        prompt=prompt,
        params=params,
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
        target_prompt_logprobs=_targets(fields, len(prompt)),
        prompt_alt_tokens_k=fields.integer(
            "prompt_alt_tokens_k", low=0, high=_TOPK_LIMIT, default=0
        ),
    )
    fields.flag("record_stability_info", False)
    for name in ("base_model", "model_path"):
        if fields.has(name):
            raise Refusal(f"{name} belongs to create_sampling_session; a sample has a session")
    fields.finish()
    return SampleRequest(sampler_id, seq_id, command, _digest(body))


def _digest(body: bytes) -> bytes:
    meaning = json.dumps(json.loads(body), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(meaning.encode(), digest_size=16).digest()


def _prompt(fields: Fields) -> NDArray[np.int32]:
    prompt = fields.nested("prompt")
    chunks = None if prompt is None else prompt.items("chunks", limit=100_000)
    if prompt is None or chunks is None:
        raise Refusal("prompt.chunks is required")
    prompt.finish()
    arrays = [_chunk(chunk, index) for index, chunk in enumerate(chunks)]
    tokens = np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int32)
    if not len(tokens):
        raise Refusal("prompt holds no tokens: give at least one")
    return tokens


def _chunk(chunk: Any, index: int) -> NDArray[np.int32]:
    where = f"prompt.chunks[{index}]"
    if not isinstance(chunk, dict):
        raise Refusal(f"{where} must be an object")
    kind = chunk.get("type", "encoded_text")
    if kind != "encoded_text":
        raise Refusal(f"{where} is of type {str(kind)[:64]!r}: the served models read text only")
    fields = Fields(chunk, f"{where}.")
    tokens = fields.items("tokens", limit=10_000_000)
    fields.finish()
    return _integers(tokens or [], f"{where}.tokens", 0, _TOKEN_LIMIT).astype(np.int32)


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


def _targets(fields: Fields, prompt_length: int) -> Tensor | None:
    given = fields.nested("target_prompt_logprobs")
    if given is None:
        return None
    where = "target_prompt_logprobs"
    data = given.items("data", limit=50_000_000) or []
    if given.text("dtype") != "int64":
        raise Refusal(f"{where}.dtype must be int64: the cells are token ids")
    shape = _integers(given.items("shape", limit=2) or [], f"{where}.shape", 0, 2**31)
    crow, col = (
        given.items("sparse_crow_indices", limit=10_000_000),
        given.items("sparse_col_indices", limit=50_000_000),
    )
    given.finish()
    values = _integers(data, f"{where}.data", -1, _TOKEN_LIMIT)
    if len(shape) != 2 or int(shape[0]) != prompt_length - 1:
        raise Refusal(f"{where}.shape must be [{prompt_length - 1}, K]: one row per later token")
    rows, columns = int(shape[0]), int(shape[1])
    if crow is None or col is None:
        if len(values) != rows * columns:
            raise Refusal(f"{where}.data has {len(values)} cells, its shape {rows * columns}")
        return values.reshape(rows, columns)
    return _sparse(values, crow, col, (rows, columns), where)


def _sparse(
    values: NDArray[np.int64], crow: list[Any], col: list[Any], shape: tuple[int, int], where: str
) -> Csr:
    rows = _integers(crow, f"{where}.sparse_crow_indices", 0, len(values))
    columns = _integers(col, f"{where}.sparse_col_indices", 0, max(shape[1] - 1, 0))
    ordered = len(rows) == shape[0] + 1 and bool(np.all(np.diff(rows) >= 0))
    if not ordered or rows[0] != 0 or rows[-1] != len(values) or len(columns) != len(values):
        raise Refusal(f"{where}: the sparse indices do not fit the data and shape")
    return Csr(values, rows, columns, shape)


def _integers(values: list[Any], where: str, low: int, high: int) -> NDArray[np.int64]:
    if not values:
        return np.zeros(0, dtype=np.int64)
    try:
        array = np.array(values)
    except (ValueError, OverflowError):
        raise Refusal(f"{where} must hold integers only") from None
    if array.ndim != 1 or array.dtype.kind != "i":
        raise Refusal(f"{where} must hold integers only")
    if int(array.min()) < low or int(array.max()) > high:
        raise Refusal(f"{where} must hold integers from {low} to {high}")
    return array.astype(np.int64, copy=False)
