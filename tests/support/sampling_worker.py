"""What a child process does with a SamplingClient it was given.

Run as ``python sampling_worker.py PICKLE FIRST COUNT``: forks COUNT children, each of which
unpickles the client, samples once and reports; prints their answers as JSON. Forking before the
client exists keeps fifty processes as cheap as one import.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
from typing import Any

import tinkex.client.service  # noqa: F401 - imported once, before the forks


def sample_once(client: Any, token: int) -> list[int]:
    from tinkex.types import ModelInput, SamplingParams

    response = client.sample(ModelInput.from_ints([token]), 1, SamplingParams(max_tokens=2))
    tokens: list[int] = response.result(timeout=60).sequences[0].tokens
    return tokens


def in_child(pickled: bytes, token: int) -> int:
    """Start a child; the descriptor from which its answer can be read."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            answer: Any = sample_once(pickle.loads(pickled), token)
        except BaseException as error:
            answer = repr(error)
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    return reader


def main(pickled: str, first: int, count: int) -> None:
    children = [in_child(base64.b64decode(pickled), first + i) for i in range(count)]
    answers = []
    for reader in children:
        with os.fdopen(reader, "rb") as file:
            answers.append(json.loads(file.read()))
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
