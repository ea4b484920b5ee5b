"""The JSON half of the protocol, as the client and the server call it."""

from tinkex.wire.errors import WireError
from tinkex.wire.forward_backward.json_form import (
    decode_forward_backward_json,
    encode_forward_backward_json,
    forward_backward_output_from_json,
)
from tinkex.wire.json_text import (
    decode,
    dumps,
    encode_request,
    first_problem,
    loads,
    loads_object,
    validated,
)
from tinkex.wire.sample_json import (
    encode_sample,
    sample_response_from_json,
)

__all__ = [
    "WireError",
    "decode",
    "decode_forward_backward_json",
    "dumps",
    "encode_forward_backward_json",
    "encode_request",
    "encode_sample",
    "first_problem",
    "forward_backward_output_from_json",
    "loads",
    "loads_object",
    "sample_response_from_json",
    "validated",
]
