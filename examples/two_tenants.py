"""Two tenants train at once, and neither can tell: their numbers are those of training alone.

Each key is a tenant. Their sequences share one packed batch in the engine, never a gradient, an
optimizer state or a random stream. The example trains A alone, then A and B together, and compares
A's losses.

    python examples/two_tenants.py --local
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import chat
import connection
import curve

import tinkex

TEXTS = {
    "tml-tenant-a": "Red sky at night, sailors' delight.",
    "tml-tenant-b": "Still waters run deep.",
}
ADAM = tinkex.AdamParams(learning_rate=2e-3)
TOLERANCE = 1e-4


def main() -> None:
    options = connection.parse(__doc__, steps=10)
    first, second = TEXTS
    start = time.perf_counter()
    alone = train(options, first)
    alone_seconds = time.perf_counter() - start
    start = time.perf_counter()
    with ThreadPoolExecutor() as pool:
        together, other = pool.map(lambda key: train(options, key), (first, second))
    both_seconds = time.perf_counter() - start
    difference = max(abs(x - y) for x, y in zip(alone, together, strict=True))
    print(f"A alone: {alone_seconds:.1f} s; A and B at once: {both_seconds:.1f} s")
    print(f"A's losses alone and beside B: at most {difference:.1e} apart (tolerance {TOLERANCE})")
    series = {"A alone": alone, "A beside B": together, "B": other}
    print("curve:", curve.draw(options.out / "two_tenants.png", series))
    if difference > TOLERANCE:
        raise SystemExit("tenant B changed tenant A's numbers")


def train(options: connection.Options, key: str) -> list[float]:
    """One tenant with a session, a run and a text of its own."""
    with options.connect(api_key=key) as service:
        training = service.create_lora_training_client(options.model, rank=8, seed=3)
        tokens = training.get_tokenizer().encode(TEXTS[key], add_special_tokens=False)
        data = [chat.next_token_datum(tokens, [1.0] * len(tokens))] * 4
        return [step(training, data) for _ in range(options.steps)]


def step(training: tinkex.TrainingClient, data: list[tinkex.Datum]) -> float:
    gradients = training.forward_backward(data, "cross_entropy")
    training.optim_step(ADAM).result()
    return chat.mean_loss(gradients.result(), data)


if __name__ == "__main__":
    main()
