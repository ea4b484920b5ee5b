"""The official client with many samples in flight, as a script that stops once they are submitted.

It prints `submitted`, waits for a line, collects every result and prints how many tokens came.
"""

from __future__ import annotations

import json
import sys

import tinker
from tinker import types


def main(url: str, model: str, count: int) -> None:
    service = tinker.ServiceClient(base_url=url, api_key="tml-crash")
    sampler = service.create_sampling_client(base_model=model)
    params = types.SamplingParams(max_tokens=600, temperature=1.0, stop=[])
    futures = [
        sampler.sample(types.ModelInput.from_ints([1, 2, 3, n + 4]), 1, params)
        for n in range(count)
    ]
    sampler.compute_logprobs(types.ModelInput.from_ints([1, 2, 3])).result(timeout=60)
    print("submitted", flush=True)
    sys.stdin.readline()
    results = [future.result(timeout=150) for future in futures]
    print(json.dumps([len(result.sequences[0].tokens) for result in results]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
