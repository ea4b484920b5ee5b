"""An async loop that keeps the engine busy: several steps are under way while one is awaited.

Every call returns a future at once and the server runs a client's calls in the order they were
made, so a loop may submit ahead. The example runs the same steps waiting for each, then with a
window of four, and shows both times.

    python examples/async_pipeline.py --local
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

import chat
import connection
import curve

import tinkex

TEXT = "Submit ahead, await behind: the engine never waits for the network."
ADAM = tinkex.AdamParams(learning_rate=1e-3)
WINDOW = 4


async def main() -> None:
    options = connection.parse(__doc__, steps=24)
    with options.connect() as service:
        one_by_one, waiting = await run(service, options, window=1)
        pipelined, flowing = await run(service, options, window=WINDOW)
    print(f"one step at a time: {waiting:.2f} s; {WINDOW} ahead: {flowing:.2f} s")
    series = {"one by one": one_by_one, "pipelined": pipelined}
    print("curve:", curve.draw(options.out / "async_pipeline.png", series))


async def run(
    service: tinkex.ServiceClient, options: connection.Options, window: int
) -> tuple[list[float], float]:
    """Losses and seconds of one run with at most `window` steps submitted and not yet awaited."""
    training = await service.create_lora_training_client_async(options.model, rank=8, seed=3)
    tokens = training.get_tokenizer().encode(TEXT, add_special_tokens=False)
    data = [chat.next_token_datum(tokens, [1.0] * len(tokens))] * 2
    start = time.perf_counter()
    losses: list[float] = []
    ahead: deque[Step] = deque()
    for _ in range(options.steps):
        if len(ahead) == window:
            losses.append(await ahead.popleft().finished(data))
        ahead.append(await Step.submitted(training, data))
    losses += [await step.finished(data) for step in ahead]
    return losses, time.perf_counter() - start


class Step:
    """A forward-backward and its update, both submitted."""

    def __init__(
        self,
        gradients: tinkex.APIFuture[tinkex.ForwardBackwardOutput],
        update: tinkex.APIFuture[tinkex.OptimStepResponse],
    ) -> None:
        self._gradients = gradients
        self._update = update

    @classmethod
    async def submitted(cls, training: tinkex.TrainingClient, data: list[tinkex.Datum]) -> Step:
        """The first await submits; the result is a future to await later."""
        gradients = await training.forward_backward_async(data, "cross_entropy")
        return cls(gradients, await training.optim_step_async(ADAM))

    async def finished(self, data: list[tinkex.Datum]) -> float:
        result = await self._gradients
        await self._update
        return chat.mean_loss(result, data)


if __name__ == "__main__":
    asyncio.run(main())
