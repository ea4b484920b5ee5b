"""Everything that reads what a stranger sent: each decoder, good examples, and its own refusal.

An input is a good example with random damage, or noise. A decoder may read it or refuse it by its
own error; anything else is a finding.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import zstandard

from support.served import forward_body
from tinkex.engine.messages import ForwardBackwardResult, SampleResult, Sequence
from tinkex.server import sample_request
from tinkex.server.codec import encode_forward, encode_sample
from tinkex.server.refusals import Refusal
from tinkex.types.datum import Datum
from tinkex.types.model_input import ModelInput
from tinkex.wire.compression import decompress
from tinkex.wire.errors import WireError
from tinkex.wire.fwdbwd_output import decode_forward_backward_output
from tinkex.wire.paths import parse_path
from tinkex.wire.protobuf import (
    decode_forward_backward,
    decode_sample_response,
    encode_forward_backward,
)


@dataclass(frozen=True)
class Decoder:
    """`read` takes bytes; `refusals` are the errors it may raise on bad ones."""

    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    examples: tuple[bytes, ...]


def _sparse() -> bytes:
    inputs = {
        "target_tokens": np.arange(6, dtype=np.int64).reshape(3, 2),
        "weights": np.ones((3, 2), np.float32),
    }
    one = Datum(model_input=ModelInput.from_ints([1, 2, 3]), loss_fn_inputs=inputs)
    return encode_forward_backward("a:train:0", 3, [one] * 3, "ppo", {"beta": 0.5}, True)


_SAMPLE = {
    "sampling_session_id": "s",
    "seq_id": 1,
    "num_samples": 2,
    "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
    "sampling_params": {"max_tokens": 3, "temperature": 0.5, "stop": ["x"]},
}


def _output() -> bytes:
    logprobs = np.linspace(-1.0, 0.0, 5, dtype=np.float32)
    return encode_forward(ForwardBackwardResult(({"logprobs": logprobs},) * 2, {"loss:sum": 1.0}))


def _sampled() -> bytes:
    sequence = Sequence(np.arange(4, dtype=np.int32), np.zeros(4, np.float32), "length")
    return bytes(encode_sample(SampleResult((sequence,) * 2, np.zeros(3, np.float32))))


DECODERS = {
    "forward_backward": Decoder(
        decode_forward_backward, (WireError,), (forward_body("m:train:0", 1), _sparse())
    ),
    "forward_backward_output": Decoder(decode_forward_backward_output, (WireError,), (_output(),)),
    "sample_response": Decoder(
        lambda data: decode_sample_response(data, ("a", "b")), (WireError,), (_sampled(),)
    ),
    "sample_request": Decoder(
        lambda data: sample_request.parse(data, 1024), (Refusal,), (json.dumps(_SAMPLE).encode(),)
    ),
    "path": Decoder(
        lambda data: parse_path(data.decode("latin-1")),
        (WireError, ValueError),
        (b"tinker://s:train:0/weights/one", b"tinker://s:train:0/sampler_weights/a-b.c_1"),
    ),
    "zstd": Decoder(
        lambda data: decompress(data, 1 << 20),
        (WireError,),
        (zstandard.compress(b"x" * 5000), zstandard.compress(bytes(4 << 20))),
    ),
}


def damaged(dice: random.Random, example: bytes) -> bytes:
    """An example with a few bytes changed, cut, doubled or put in; sometimes only noise."""
    data = bytearray(example if dice.random() < 0.97 else dice.randbytes(dice.randint(0, 80)))
    for _ in range(dice.randint(0, 4)):
        place = dice.randint(0, len(data))
        kind = dice.randint(0, 4)
        if kind == 0 and place < len(data):
            data[place] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        elif kind == 1:
            del data[place : place + dice.randint(1, 9)]
        elif kind == 2:
            data[place:place] = dice.randbytes(dice.randint(1, 6))
        elif kind == 3:
            data[place:place] = data[place : place + dice.randint(1, 20)]
        elif len(data) > 1:
            data = data[: dice.randint(0, len(data))]
    return bytes(data)


def attack(name: str, seed: int, count: int) -> int:
    """Feed a decoder `count` inputs; return how many it read. Raises on a finding."""
    decoder, dice, read = DECODERS[name], random.Random(seed), 0
    for _ in range(count):
        data = damaged(dice, dice.choice(decoder.examples))
        try:
            decoder.read(data)
        except decoder.refusals:
            continue
        except Exception as error:
            error.add_note(f"{name} on {data!r}")
            raise
        read += 1
    return read
