"""Direct preference optimisation through a custom loss: any function of the logprobs trains.

Each pair is a preferred and a rejected answer to one prompt. The loss is written in torch and runs
here; the server does the passes through the model. The first loss is ln 2 = 0.693, because the
policy starts as its own reference.

    python examples/dpo.py --local
"""

from __future__ import annotations

from typing import Any

import chat
import connection
import curve
import torch

import tinkex

BETA = 0.1
ADAM = tinkex.AdamParams(learning_rate=1e-3)
PAIRS = (
    ("Say hello: ", "Good morning to you.", "What do you want?"),
    ("Thank them: ", "Thank you, that was kind.", "Whatever. Bye."),
    ("Say no: ", "I am sorry, I cannot.", "No. Go away."),
    ("Ask again: ", "Could you repeat that?", "Huh? Speak up!"),
)


def main() -> None:
    options = connection.parse(__doc__, steps=12)
    with options.connect() as service:
        training = service.create_lora_training_client(options.model, rank=16, seed=7)
        tokenizer = training.get_tokenizer()
        data = [datum for pair in PAIRS for datum in pair_of_datums(tokenizer, *pair)]
        reference = reference_scores(service.create_sampling_client(base_model=options.model), data)
        loss_fn = preference_loss(reference)
        with connection.timed(f"{options.steps} steps"):
            history = [step(training, data, loss_fn) for _ in range(options.steps)]
    losses = [metrics["loss:sum"] for metrics in history]
    margins = [metrics["dpo/margin:mean"] for metrics in history]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, margin {margins[-1]:+.2f} nats")
    print("curve:", curve.draw(options.out / "dpo.png", {"loss": losses}))


def pair_of_datums(tokenizer: Any, prompt: str, good: str, bad: str) -> list[tinkex.Datum]:
    """The preferred answer first; only the answer's tokens count."""
    datums = []
    for text in (good, bad):
        start = tokenizer.encode(prompt, add_special_tokens=False)
        end = tokenizer.encode(text, add_special_tokens=False)
        datums.append(chat.next_token_datum(start + end, [0.0] * len(start) + [1.0] * len(end)))
    return datums


def reference_scores(sampler: tinkex.SamplingClient, data: list[tinkex.Datum]) -> torch.Tensor:
    """The base model's log-probability of every answer."""
    futures = [sampler.compute_logprobs(whole_sequence(datum)) for datum in data]
    logprobs = [torch.tensor(future.result()[1:]) for future in futures]
    return answer_scores(data, logprobs)


def whole_sequence(datum: tinkex.Datum) -> tinkex.ModelInput:
    last = int(datum.loss_fn_inputs["target_tokens"].to_numpy()[-1])
    return datum.model_input.append_int(last)


def answer_scores(data: list[tinkex.Datum], logprobs: list[torch.Tensor]) -> torch.Tensor:
    weights = [datum.loss_fn_inputs["weights"].to_torch() for datum in data]
    return torch.stack([(lp * w).sum() for lp, w in zip(logprobs, weights, strict=True)])


def preference_loss(reference: torch.Tensor) -> Any:
    """-log sigmoid(beta * (policy margin - reference margin)), averaged over the pairs."""

    def loss_fn(
        data: list[tinkex.Datum], logprobs: list[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        gained = answer_scores(data, logprobs) - reference
        margin = gained[0::2] - gained[1::2]
        loss = -torch.nn.functional.logsigmoid(BETA * margin).mean()
        return loss, {"dpo/margin:mean": margin.mean().item()}

    return loss_fn


def step(
    training: tinkex.TrainingClient, data: list[tinkex.Datum], loss_fn: Any
) -> dict[str, float]:
    gradients = training.forward_backward_custom(data, loss_fn)
    update = training.optim_step(ADAM)
    metrics = gradients.result().metrics
    update.result()
    print(f"  loss {metrics['loss:sum']:.4f}, margin {metrics['dpo/margin:mean']:+.3f}")
    return metrics


if __name__ == "__main__":
    main()
