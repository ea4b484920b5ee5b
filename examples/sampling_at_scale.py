"""Hundreds of samples at once on one client, with backpressure instead of a crash.

`sample_async` may be called as often as you like: the client bounds what is in flight, waits out
a 429 once for all callers, and resubmits what the server lost. A bounded set of workers keeps this
process's memory flat too.

    python examples/sampling_at_scale.py --local
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import connection
import curve

import tinkex
from tinkex.events import default_bus

WORKERS = 64
PARAMS = tinkex.SamplingParams(max_tokens=16, temperature=1.0)


async def main() -> None:
    options = connection.parse(__doc__, steps=300)
    with options.connect() as service:
        sampler = await service.create_sampling_client_async(base_model=options.model)
        tokenizer = sampler.get_tokenizer()
        prompts = iter(
            [
                tokenizer.encode(f"Line {n}: ", add_special_tokens=False)
                for n in range(options.steps)
            ]
        )
        start = time.perf_counter()
        finished: list[float] = []
        async with asyncio.TaskGroup() as group:
            for _ in range(min(WORKERS, options.steps)):
                group.create_task(worker(sampler, prompts, finished, start))
    report(finished)
    across = f"sixtieths of {finished[-1]:.1f} s"
    picture = options.out / "sampling_at_scale.png"
    print("curve:", curve.draw(picture, progress(finished), across))


async def worker(
    sampler: tinkex.SamplingClient,
    prompts: Iterator[list[int]],
    finished: list[float],
    start: float,
) -> None:
    """Take the next prompt until there is none; all workers share the iterator."""
    for tokens in prompts:
        response = await sampler.sample_async(tinkex.ModelInput.from_ints(tokens), 1, PARAMS)
        assert response.sequences
        finished.append(time.perf_counter() - start)


def report(finished: list[float]) -> None:
    counters = default_bus.metrics.snapshot().counters
    print(f"{len(finished)} samples in {finished[-1]:.1f} s, {WORKERS} in flight")
    print(f"{len(finished) / finished[-1]:.0f} samples/s")
    print(f"held back by the server: {counters.get('tinkex.sampling.backpressure', 0)} times")


def progress(finished: list[float], points: int = 60) -> dict[str, list[float]]:
    """Samples completed against time, at even intervals."""
    times = [finished[-1] * (index + 1) / points for index in range(points)]
    return {"completed": [float(sum(t <= moment for t in finished)) for moment in times]}


if __name__ == "__main__":
    asyncio.run(main())
