"""Good inputs for each decoder, made in code: every variant a message has, each at least once.

Fuzzing starts from these; what is not reachable by small changes from one of them is rarely met.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import zstandard

from support.served import forward_body
from tinkex.engine.messages import Csr, ForwardBackwardResult, SampleResult, Sequence, TopK
from tinkex.server.protocol.forward_codec import encode_forward, encode_sample
from tinkex.types.datum import Datum
from tinkex.types.model_input import DmelChunk, EncodedTextChunk, ImageChunk, ModelInput
from tinkex.types.provenance import PromptProvenanceSpan, SampledProvenanceSpan
from tinkex.types.sampling import SampledWeights
from tinkex.types.tensor_data import TensorData
from tinkex.wire.protobuf import encode_forward_backward

RUN = "m:train:0"


def forward_bodies() -> tuple[bytes, ...]:
    """Dense and sparse inputs, spans, pictures and sound, both forms of a loss's settings."""
    return (
        forward_body(RUN, 1),
        forward_body(RUN, 2, forward_only=True, length=1),
        encode_forward_backward(RUN, 3, [_dense()] * 3, "ppo", {"beta": 0.5}, True),
        encode_forward_backward(RUN, 4, [_sparse()], "cross_entropy", None, False),
        encode_forward_backward(RUN, 5, [_spanned()], "custom", {"loss_id": "x", "a": 1.0}, False),
        encode_forward_backward(RUN, 2**31 - 1, [_seen_and_heard()], "cispo", None, False),
    )


def _dense() -> Datum:
    inputs = {
        "target_tokens": np.arange(6, dtype=np.int64).reshape(3, 2),
        "weights": np.ones((3, 2), np.float32),
    }
    return Datum(model_input=ModelInput.from_ints([1, 2, 3]), loss_fn_inputs=inputs)


def _sparse() -> Datum:
    targets = TensorData([7, 8], "int64", (3, 4), [0, 1, 1, 2], [0, 3])
    weights = TensorData([0.5, 1.0], "float32", (3, 4), [0, 1, 1, 2], [0, 3])
    inputs = {"target_tokens": targets, "weights": weights}
    return Datum(model_input=ModelInput.from_ints([1, 2, 3]), loss_fn_inputs=inputs)


def _spanned() -> Datum:
    spans: list[Any] = [
        PromptProvenanceSpan(sequence_id="a", length=1),
        SampledProvenanceSpan(sequence_id="b", offset=4, length=2),
    ]
    plain = Datum(
        model_input=ModelInput.from_ints([1, 2, 3]),
        loss_fn_inputs={"target_tokens": [2, 3, 4], "advantages": [0.0, 1.0, -1.0]},
    )
    return plain.with_provenance(spans, spans)


def _seen_and_heard() -> Datum:
    chunks = [
        EncodedTextChunk(tokens=[1, 2]),
        ImageChunk(data=b"\x89PNG", format="png", expected_tokens=2),
        DmelChunk(dmel=b"\x01\x02\x03"),
    ]
    return Datum(model_input=ModelInput(chunks=chunks), loss_fn_inputs={"target_tokens": [1]})


def forward_outputs() -> tuple[bytes, ...]:
    logprobs = np.linspace(-1.0, 0.0, 5, dtype=np.float32)
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    return (
        encode_forward(ForwardBackwardResult(({"logprobs": logprobs},) * 2, {"loss:sum": 1.0})),
        encode_forward(ForwardBackwardResult(({"logprobs": table, "ids": table},), {})),
        encode_forward(ForwardBackwardResult(({"a": logprobs[:0]}, {"a": logprobs}), {"n:max": 2})),
    )


def sample_responses() -> tuple[bytes, ...]:
    topk = TopK(np.ones((4, 2), np.int32), np.zeros((4, 2), np.float32))
    prompt = TopK(np.ones((3, 2), np.int32), np.zeros((3, 2), np.float32))
    plain = Sequence(np.arange(4, dtype=np.int32), np.zeros(4, np.float32), "length")
    rich = Sequence(np.arange(4, dtype=np.int32), np.zeros(4, np.float32), "stop", topk)
    targets = Csr(
        np.zeros(2, np.float32), np.array([0, 1, 2], np.int64), np.array([0, 1], np.int64), (2, 2)
    )
    logprobs = np.array([np.nan, -1.0, -2.0], np.float32)
    base, named = SampledWeights("m"), SampledWeights("m", "tinker://r/sampler_weights/a", "0" * 64)
    return (
        encode_sample(SampleResult((plain,) * 2, np.zeros(3, np.float32)), base),
        encode_sample(
            SampleResult((rich, plain), logprobs, prompt, np.zeros((2, 2), np.float32)), named
        ),
        encode_sample(
            SampleResult((rich,), logprobs, None, targets, alt_tokens=prompt, cached_tokens=2),
            named,
        ),
    )


def sample_requests() -> tuple[bytes, ...]:
    chunks = [{"type": "encoded_text", "tokens": [1, 2, 3]}, {"tokens": [4]}]
    small = {
        "sampling_session_id": "s",
        "seq_id": 1,
        "num_samples": 2,
        "prompt": {"chunks": chunks},
        "sampling_params": {"max_tokens": 3, "temperature": 0.5, "stop": ["x"]},
    }
    dense = {"data": [1, -1, 2, 3, 4, 5], "dtype": "int64", "shape": [3, 2]}
    indices = {"sparse_crow_indices": [0, 1, 1, 2], "sparse_col_indices": [0, 1]}
    sparse = {"data": [5, 6], "dtype": "int64", "shape": [3, 2], **indices}
    rich = {
        **small,
        "type": "sample",
        "prompt_logprobs": True,
        "prompt_logprobs_last_n": 2,
        "topk_prompt_logprobs": 3,
        "topk_sample_logprobs": 2,
        "prompt_alt_tokens_k": 1,
        "record_stability_info": False,
        "target_prompt_logprobs": dense,
        "sampling_params": {"seed": -5, "top_k": 3, "top_p": 0.5, "stop": [1, 2]},
    }
    stopped = {"max_tokens": 0, "stop": "end"}
    given = (small, rich, {**rich, "target_prompt_logprobs": sparse, "sampling_params": stopped})
    return tuple(json.dumps(each).encode() for each in given)


def json_bodies() -> tuple[bytes, ...]:
    """One body at least of every route that takes JSON, besides samples."""
    run, session = {"model_id": RUN, "seq_id": 1}, {"session_id": "s"}
    path, metadata = "tinker://m:train:0/weights/a", {"job": "x", "n": 1}
    given: tuple[dict[str, Any], ...] = (
        {"tags": ["a"], "user_metadata": metadata, "project_id": "p", "display_name": "d"},
        session,
        {"reason": {"type": "errored"}, "detail": "x"},
        {
            **session,
            "model_seq_id": 0,
            "base_model": "m",
            "lora_config": {"rank": 4, "seed": -1, "train_mlp": False},
            "optimizer_config": {"type": "dimuon", "version": 1},
            "user_metadata": metadata,
        },
        {**run, "adam_params": {"learning_rate": 1e-3, "beta1": 0.5, "grad_clip_norm": 1}},
        {**run, "optimizer_params": {"type": "dimuon", "learning_rate": 0.1}},
        {**run, "path": "a", "ttl_seconds": 3600, "overwrite": True, "user_metadata": metadata},
        {**run, "path": "a", "age_encryption_recipients": ["age1x"]},
        {**run, "sampling_session_seq_id": 3},
        {**run, "path": path, "optimizer": True, "weights_access_token": "t"},
        {**session, "model_seq_id": 1, "path": path, "optimizer": False, "base_model": "m"},
        {
            **session,
            "custom_loss_seq_id": 0,
            "name": "l",
            "inputs": [{"name": "logprobs", "rank": 1}],
            "graph": {"format": 1, "nodes": [{"op": "sum"}]},
        },
        {**session, "sampling_session_seq_id": 0, "model_path": path, "base_model": "m"},
        {"request_id": "r", "allow_metadata_only": True},
        {
            "target": {"type": "sampling_session", "sampling_session_id": "s"},
            "prev_cursor": 3,
            "retrieved_request_ids": ["a"],
        },
        {
            "owner": {"type": "user", "owner_urns": ["tinkex:tenant:a"]},
            "statuses": [{"type": "active"}, {"type": "client_finished", "reasons": ["success"]}],
            "user_metadata": {"job": "x"},
            "project_ids": ["p"],
            "cursor": {"last_created_at": "2026-01-31T12:00:00+01:00", "last_session_id": "s"},
        },
        {"source_path": path, "destination_project_id": "p", "ttl_seconds": None},
        {"tinker_path": path},
    )
    return tuple(json.dumps(each).encode() for each in given)


def paths() -> tuple[bytes, ...]:
    return (
        b"tinker://s:train:0/weights/one",
        b"tinker://s:train:0/sampler_weights/a-b.c_1",
        "tinker://run/external_weights/café".encode(),
    )


def compressed() -> tuple[bytes, ...]:
    """One frame small, one large, one that hides its size, two in a row, one not compressed."""
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 300)
    checked = zstandard.ZstdCompressor(write_checksum=True).compress(bytes(range(256)))
    one = zstandard.compress(b"x" * 5000)
    return (one, zstandard.compress(bytes(4 << 20)), unsized, checked, one + one)
