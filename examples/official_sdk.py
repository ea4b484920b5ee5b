"""The official SDK, unmodified, against `tinkex serve`: only the address is ours.

python examples/official_sdk.py --local
"""

from __future__ import annotations

import os
import time

import connection
import curve
import serving

# Nothing needs the hub: the server names a tokenizer folder that this machine can read.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TINKER_TELEMETRY", "0")

TEXT = "The same thirty lines train here and there."


def main() -> None:
    options = connection.parse(__doc__, steps=10)
    if options.base_url:
        losses = train(options.base_url, options)
    else:
        with serving.served([options.model]) as server:
            losses = train(server.address, options)
    print(f"loss per token: {losses[0]:.3f} -> {losses[-1]:.3f}")
    print("curve:", curve.draw(options.out / "official_sdk.png", {"loss": losses}))


def train(address: str, options: connection.Options) -> list[float]:
    """Written for the official package, as its own users write it."""
    import tinker

    print(f"tinker {tinker.__version__} -> {address}")
    service = tinker.ServiceClient(base_url=address, api_key="tml-local")
    training = service.create_lora_training_client(options.model, rank=8, seed=1)
    tokenizer = training.get_tokenizer()
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )
    losses = []
    start = time.perf_counter()
    for _ in range(options.steps):
        gradients = training.forward_backward([datum], "cross_entropy")
        update = training.optim_step(tinker.AdamParams(learning_rate=2e-3))
        losses.append(gradients.result().metrics["loss:sum"] / (len(tokens) - 1))
        update.result()
    print(f"{options.steps} steps: {time.perf_counter() - start:.1f} s")
    sampler = training.save_weights_and_get_sampling_client()
    prompt = tinker.ModelInput.from_ints(tokens[:8])
    params = tinker.SamplingParams(max_tokens=24, temperature=0.0)
    response = sampler.sample(prompt, 1, params).result()
    print("sampled:", repr(tokenizer.decode(response.sequences[0].tokens)))
    print("saved:  ", training.save_state("official").result().path)
    service.close("success").result()
    return losses


if __name__ == "__main__":
    main()
