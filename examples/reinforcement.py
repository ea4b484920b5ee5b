"""Reinforcement learning with a reward that a program can check.

The task: continue a line with digits only. The policy samples, a function scores, and importance
sampling raises what scored above its group's mean. The tiny model starts at chance.

    python examples/reinforcement.py --local
"""

from __future__ import annotations

from typing import Any

import connection
import curve
import numpy as np

import tinkex

PROMPTS = ("Lottery numbers: ", "My phone number is ", "Pi is 3.", "Count with me: ")
GROUP = 16
LENGTH = 8
ADAM = tinkex.AdamParams(learning_rate=4e-3)


def reward(text: str) -> float:
    """The share of characters that are digits."""
    return sum(character in "0123456789" for character in text) / max(1, len(text))


def main() -> None:
    options = connection.parse(__doc__, steps=20)
    with options.connect() as service:
        training = service.create_lora_training_client(options.model, rank=16, seed=7)
        tokenizer = training.get_tokenizer()
        with connection.timed(f"{options.steps} steps of {len(PROMPTS) * GROUP} samples"):
            rewards = [step(training, tokenizer, number) for number in range(options.steps)]
    print(f"mean reward: {rewards[0]:.3f} -> {rewards[-1]:.3f}")
    print("curve:", curve.draw(options.out / "reinforcement.png", {"reward": rewards}))


def step(training: tinkex.TrainingClient, tokenizer: Any, number: int) -> float:
    """Sample from the current weights, score, and move towards what scored well."""
    sampler = training.save_weights_and_get_sampling_client()
    data: list[tinkex.Datum] = []
    scores: list[float] = []
    for prompt, response in samples(sampler, tokenizer, number):
        group = [reward(tokenizer.decode(sequence.tokens)) for sequence in response.sequences]
        centred = np.asarray(group) - np.mean(group)
        scores += group
        data += [
            datum(prompt, sequence, float(advantage))
            for sequence, advantage in zip(response.sequences, centred, strict=True)
        ]
    gradients = training.forward_backward(data, "importance_sampling")
    update = training.optim_step(ADAM)
    gradients.result()
    update.result()
    print(f"  step {number}: mean reward {np.mean(scores):.3f}")
    return float(np.mean(scores))


def samples(
    sampler: tinkex.SamplingClient, tokenizer: Any, number: int
) -> list[tuple[list[int], tinkex.SampleResponse]]:
    """All groups at once: the futures are made first and awaited after."""
    params = tinkex.SamplingParams(max_tokens=LENGTH, temperature=1.0, seed=number, stop=[])
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in PROMPTS]
    futures = [sampler.sample(tinkex.ModelInput.from_ints(p), GROUP, params) for p in prompts]
    return [(prompt, future.result()) for prompt, future in zip(prompts, futures, strict=True)]


def datum(prompt: list[int], sequence: tinkex.SampledSequence, advantage: float) -> tinkex.Datum:
    """The sampled tokens are the targets; the prompt's positions carry no advantage."""
    tokens = [*prompt, *sequence.tokens]
    silent = len(prompt) - 1
    return tinkex.Datum(
        model_input=tinkex.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tokens[1:],
            "logprobs": [0.0] * silent + (sequence.logprobs or []),
            "advantages": [0.0] * silent + [advantage] * len(sequence.tokens),
        },
    )


if __name__ == "__main__":
    main()
