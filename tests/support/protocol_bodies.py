"""Bodies of the protocol as a test server sees and makes them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from support.socket_server import Received
from tinkex.types import TensorData
from tinkex.types.csr import dense_from_csr
from tinkex.wire.compression import decompress
from tinkex.wire.json import decode_forward_backward_json
from tinkex.wire.protobuf import (
    decode_forward_backward,
)

PROTOBUF = "application/x-protobuf"


def tensor(values: Any) -> TensorData:
    return TensorData.from_numpy(np.asarray(values, dtype=np.float32))


def prompt_logprobs(tokens: list[int], body: Any) -> np.ndarray | None:
    if not body["prompt_logprobs"]:
        return None
    values = np.full(len(tokens), -1.25, dtype=np.float32)
    first = len(tokens) - (body.get("prompt_logprobs_last_n") or len(tokens) - 1)
    values[: max(1, first)] = np.nan
    return values


def decoded(request: Received) -> Any:
    if not request.body:
        return None
    body = request.body
    if request.headers.get("content-encoding") == "zstd":
        body = decompress(body)
    if PROTOBUF in request.headers.get("content-type", ""):
        return _fields(decode_forward_backward(body))
    value = json.loads(body)
    if request.path.endswith("/forward_backward"):
        return _fields(decode_forward_backward_json(body))
    return value


def _fields(call: Any) -> dict[str, Any]:
    return {
        "model_id": call.model_id,
        "seq_id": call.seq_id,
        "loss_fn": call.loss_fn,
        "loss_fn_config": dict(call.loss_fn_config),
        "forward_only": call.forward_only,
        "data": [
            {
                "tokens": datum.tokens.tolist(),
                "inputs": {name: _dense(value) for name, value in sorted(datum.inputs.items())},
            }
            for datum in call.data
        ],
    }


def _dense(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return dense_from_csr(value, 0).tolist()
