"""What a child process does with a SamplingClient it was given. Importable by name."""

from __future__ import annotations

import base64
import pickle
import sys
from typing import Any


def sample_once(client: Any, token: int) -> list[int]:
    from tinkex.types import ModelInput, SamplingParams

    response = client.sample(ModelInput.from_ints([token]), 1, SamplingParams(max_tokens=2))
    tokens: list[int] = response.result(timeout=60).sequences[0].tokens
    return tokens


if __name__ == "__main__":
    restored = pickle.loads(base64.b64decode(sys.argv[1]))
    print(sample_once(restored, int(sys.argv[2])))
