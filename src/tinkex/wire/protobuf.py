"""The binary half of the protocol, as the client and the server call it."""

from tinkex.wire.calls import ForwardBackwardCall, WireDatum
from tinkex.wire.errors import WireError
from tinkex.wire.forward_backward.decode import decode_forward_backward
from tinkex.wire.forward_backward.output import (
    decode_forward_backward_output,
    encode_forward_backward_output,
)
from tinkex.wire.forward_backward.request import encode_forward_backward
from tinkex.wire.samples import decode_sample_response, encode_sample_response

__all__ = [
    "ForwardBackwardCall",
    "WireDatum",
    "WireError",
    "decode_forward_backward",
    "decode_forward_backward_output",
    "decode_sample_response",
    "encode_forward_backward",
    "encode_forward_backward_output",
    "encode_sample_response",
]
