"""Supervised fine-tuning from a chat JSONL file: the answer before, the training, the answer after.

python examples/supervised_chat.py --local
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chat
import connection
import curve

import tinkex

DATA = Path(__file__).parent / "data" / "lighthouse.jsonl"
ADAM = tinkex.AdamParams(learning_rate=2e-3, beta2=0.99)


def main() -> None:
    options = connection.parse(__doc__, model=connection.SMALL, steps=12)
    conversations = chat.read_jsonl(DATA)
    with options.connect() as service:
        with connection.timed("create the run"):
            training = service.create_lora_training_client(options.model, rank=16, seed=7)
        tokenizer = training.get_tokenizer()
        data = [chat.datum(tokenizer, messages) for messages in conversations]
        question = conversations[0][:1]
        before = service.create_sampling_client(base_model=options.model)
        print("before:", answer(before, tokenizer, question))
        with connection.timed(f"{options.steps} steps"):
            losses = [step(training, data) for _ in range(options.steps)]
        after = training.save_weights_and_get_sampling_client()
        print("after: ", answer(after, tokenizer, question))
        print("saved: ", training.save_state("lighthouse", ttl_seconds=86400).result().path)
    print(f"loss per token: {losses[0]:.3f} -> {losses[-1]:.3f}")
    print("curve:", curve.draw(options.out / "supervised_chat.png", {"loss": losses}))


def step(training: tinkex.TrainingClient, data: list[tinkex.Datum]) -> float:
    """Submit both halves before waiting for either: the server runs them in order."""
    gradients = training.forward_backward(data, "cross_entropy")
    update = training.optim_step(ADAM)
    loss = chat.mean_loss(gradients.result(), data)
    update.result()
    print(f"  loss {loss:.3f}")
    return loss


def answer(sampler: tinkex.SamplingClient, tokenizer: Any, messages: list[chat.Message]) -> str:
    params = tinkex.SamplingParams(max_tokens=32, temperature=0.0)
    response = sampler.sample(chat.prompt(tokenizer, messages), 1, params).result()
    text = tokenizer.decode(response.sequences[0].tokens, skip_special_tokens=True)
    return str(text).strip()


if __name__ == "__main__":
    main()
