"""Routes as they are stored: of each datum's tokens, which experts they were sent to, or nothing.

A line of JSON with the kind and the shape of each, then their bytes one after another.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np

from tinkex.engine.messages import Routes


def encode_routes(routes: Sequence[Routes | None]) -> bytes:
    told = [None if each is None else [each.dtype.str, each.shape] for each in routes]
    parts = [np.ascontiguousarray(each).data for each in routes if each is not None]
    return b"".join([json.dumps(told).encode(), b"\n", *parts])


def decode_routes(body: bytes) -> list[Routes | None]:
    line, _, _ = body.partition(b"\n")
    offset, found = len(line) + 1, list[Routes | None]()
    for told in json.loads(line):
        if told is None:
            found.append(None)
            continue
        kind, shape = np.dtype(told[0]), tuple(told[1])
        count = math.prod(shape)
        found.append(np.frombuffer(body, kind, count, offset).reshape(shape).copy())
        offset += count * kind.itemsize
    return found
