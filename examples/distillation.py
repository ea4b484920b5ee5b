"""Distillation: a student learns a teacher's whole distribution, K candidates for every token.

The teacher is a run that was taught a text. Asked for `topk_prompt_logprobs`, its sampler returns
the K likeliest tokens at every position; the student's cross-entropy takes them as `[N, K]` targets
with their probabilities as weights.

    python examples/distillation.py --local
"""

from __future__ import annotations

import chat
import connection
import curve
import numpy as np

import tinkex

TEXT = "The keeper climbs the stairs at dusk, lights the lamp, and counts the ships that pass."
TOP_K = 16
ADAM = tinkex.AdamParams(learning_rate=4e-3)


def main() -> None:
    options = connection.parse(__doc__, steps=15)
    with options.connect() as service:
        with connection.timed("teach the teacher"):
            teacher, tokens = taught(service, options)
        response = teacher.sample(
            tinkex.ModelInput.from_ints(tokens),
            1,
            tinkex.SamplingParams(max_tokens=1),
            include_prompt_logprobs=True,
            topk_prompt_logprobs=TOP_K,
        ).result()
        datum = soft_datum(tokens, response)
        student = service.create_lora_training_client(options.model, rank=8, seed=2)
        with connection.timed(f"{options.steps} steps of the student"):
            gaps = [step(student, datum) for _ in range(options.steps)]
    print(f"divergence from the teacher: {gaps[0]:.3f} -> {gaps[-1]:.3f} nats per token")
    print("curve:", curve.draw(options.out / "distillation.png", {"divergence": gaps}))


def taught(
    service: tinkex.ServiceClient, options: connection.Options
) -> tuple[tinkex.SamplingClient, list[int]]:
    """A teacher that knows the text by heart, and the text's tokens."""
    training = service.create_lora_training_client(options.model, rank=16, seed=1)
    tokens = training.get_tokenizer().encode(TEXT, add_special_tokens=False)
    datum = chat.next_token_datum(tokens, [1.0] * len(tokens))
    for _ in range(options.steps):
        training.forward_backward([datum], "cross_entropy")
        training.optim_step(ADAM)
    return training.save_weights_and_get_sampling_client(), tokens


def soft_datum(tokens: list[int], response: tinkex.SampleResponse) -> tinkex.Datum:
    """Row i holds the teacher's candidates for token i + 1; row 0 of the answer has none."""
    rows = response.topk_prompt_logprobs
    assert rows is not None
    ids = np.zeros((len(tokens) - 1, TOP_K), dtype=np.int64)
    probabilities = np.zeros((len(tokens) - 1, TOP_K), dtype=np.float32)
    for position, row in enumerate(rows[1:]):
        for column, (token, logprob) in enumerate(row or []):
            ids[position, column] = token
            probabilities[position, column] = np.exp(logprob)
    return tinkex.Datum(
        model_input=tinkex.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tinkex.TensorData.from_numpy(ids),
            "weights": tinkex.TensorData.from_numpy(probabilities),
        },
    )


def step(student: tinkex.TrainingClient, datum: tinkex.Datum) -> float:
    """One update; returns the cross-entropy minus the teacher's own entropy, per token."""
    gradients = student.forward_backward([datum], "cross_entropy")
    update = student.optim_step(ADAM)
    weights = datum.loss_fn_inputs["weights"].to_numpy()
    entropy = -float(np.sum(weights * np.log(np.maximum(weights, 1e-30))))
    gap = (gradients.result().metrics["loss:sum"] - entropy) / len(weights)
    update.result()
    print(f"  divergence {gap:.3f}")
    return gap


if __name__ == "__main__":
    main()
