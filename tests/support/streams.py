"""What a server writes that streams a sample: three tokens in two pieces, then the whole result."""

import base64
import json
from typing import Any

import numpy as np

from support.socket_server import Answer, Reply
from tinkex.types import SampledSequence, SampleResponse
from tinkex.wire.protobuf import encode_sample_response

RESULT = encode_sample_response(
    SampleResponse(
        sequences=[
            SampledSequence(
                stop_reason="stop", sequence_id="", tokens_np=np.array([1, 2, 3], dtype=np.int32)
            )
        ]
    )
)
START = {"type": "start", "request_id": "r", "sample_sequence_ids": ["a"]}
PIECES = [
    {"type": "tokens", "index": 0, "tokens": [1], "logprobs": [-0.5]},
    {"type": "tokens", "index": 0, "tokens": [2, 3], "logprobs": [-0.25, -1.0]},
]
DONE = {"type": "done", "result": base64.b64encode(RESULT).decode()}


def lines(*events: Any) -> Answer:
    body = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    return Answer(Reply(200, body, "application/x-ndjson"))
