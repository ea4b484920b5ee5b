"""Everything that reads what a stranger sent: each decoder, good examples, and its own refusal.

An input is a good example with random damage, or noise. A decoder may read it or refuse it by its
own error; anything else is a finding.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jsonschema_rs

from fuzz import seeds
from fuzz.json_mutation import mutated
from tinkex.server.app import ROUTES
from tinkex.server.checkpoints import rules as checkpoint_rules
from tinkex.server.http.routing import ApiRoute
from tinkex.server.protocol import sample_request
from tinkex.server.protocol.forward_codec import examine
from tinkex.server.protocol.json_body import parse
from tinkex.server.protocol.reading import Reader
from tinkex.server.refusals import Refusal
from tinkex.wire.compression import decompress
from tinkex.wire.errors import WireError
from tinkex.wire.forward_backward.output import decode_forward_backward_output
from tinkex.wire.paths import parse_path
from tinkex.wire.protobuf import decode_forward_backward, decode_sample_response


@dataclass(frozen=True)
class Decoder:
    """`read` takes bytes; `refusals` are the errors it may raise on bad ones."""

    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    examples: tuple[bytes, ...]
    is_json: bool = False


def _reading(reader: Reader[Any]) -> Callable[[bytes], object]:
    fits = jsonschema_rs.validator_for(reader.schema()).is_valid

    def read(data: bytes) -> None:
        reader.parse(data)
        assert fits(parse(data)), "what is read is not as described"

    return read


READERS = [
    _reading(reader)
    for route in ROUTES
    if isinstance(route, ApiRoute) and not route.path.endswith("config")
    for reader in route.contract.readers
]
"""Of all routes but those that take whatever a client says about itself."""


def _json_bodies(data: bytes) -> None:
    """Every reader of a JSON body on the same one; refused only if all of them refuse it."""
    parse(data)
    refused = 0
    for read in READERS:
        try:
            read(data)
        except Refusal:
            refused += 1
    if refused == len(READERS):
        raise Refusal("nobody reads this")


DECODERS = {
    "json_bodies": Decoder(_json_bodies, (Refusal,), seeds.json_bodies(), True),
    "forward_backward": Decoder(decode_forward_backward, (WireError,), seeds.forward_bodies()),
    "forward_body": Decoder(examine, (Refusal,), seeds.forward_bodies()),
    "forward_backward_output": Decoder(
        decode_forward_backward_output, (WireError,), seeds.forward_outputs()
    ),
    "sample_response": Decoder(
        lambda data: decode_sample_response(data, ("a", "b")),
        (WireError,),
        seeds.sample_responses(),
    ),
    "sample_request": Decoder(
        lambda data: sample_request.parse(data, 1024), (Refusal,), seeds.sample_requests(), True
    ),
    "path": Decoder(
        lambda data: parse_path(data.decode(errors="surrogateescape")), (WireError,), seeds.paths()
    ),
    "checkpoint_path": Decoder(
        lambda data: checkpoint_rules.parse_path(data.decode(errors="surrogateescape")),
        (Refusal,),
        seeds.paths(),
    ),
    "zstd": Decoder(
        lambda data: decompress(data, 1 << 20),
        (WireError,),
        seeds.compressed(),
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
        example = dice.choice(decoder.examples)
        if decoder.is_json and dice.random() < 0.5:
            data = mutated(example, dice)
        else:
            data = damaged(dice, example)
        try:
            decoder.read(data)
        except decoder.refusals:
            continue
        except Exception as error:
            error.add_note(f"{name} on {data!r}")
            raise
        read += 1
    return read
