"""The official client training a tiny model, as a script that stops after every submission.

It prints `step N` and waits for a line before it collects the results, so that whoever runs it can
do harm in between. The last line is a JSON list of the losses. Run in a process of its own because
the official client leaves its sockets to the garbage collector.
"""

from __future__ import annotations

import json
import sys

import tinker
from tinker import types

RESULT_S = 150.0


def main(url: str, model: str, steps: int) -> None:
    service = tinker.ServiceClient(base_url=url, api_key="tml-crash")
    client = service.create_lora_training_client(base_model=model, rank=4, seed=7)
    losses = []
    for step in range(steps):
        forward = client.forward_backward([_datum(step)] * 3, "cross_entropy")
        update = client.optim_step(types.AdamParams(learning_rate=3e-3))
        print("step", step, flush=True)
        sys.stdin.readline()
        losses.append(forward.result(timeout=RESULT_S).metrics["loss:sum"])
        update.result(timeout=RESULT_S)
    client.save_state("final").result(timeout=RESULT_S)
    print(json.dumps(losses), flush=True)


def _datum(step: int) -> types.Datum:
    tokens = [(step + 3 * k) % 50 + 1 for k in range(12)]
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
