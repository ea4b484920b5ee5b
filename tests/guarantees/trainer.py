"""A user's training script with either SDK: run as ``python trainer.py SDK URL STEPS [paced]``.

Prints `step N` after each step and, last, a JSON list of every loss. It handles no errors: whatever
its SDK raises ends it. Paced, it reads a line before each step.
"""

import importlib
import json
import sys
import warnings

from support.guarantee_data import batch
from support.server_process import MODEL

RESULT_S = 280.0


def main(name: str, url: str, steps: int, *, paced: bool) -> None:
    warnings.simplefilter("ignore")
    sdk = importlib.import_module(name)
    service = sdk.ServiceClient(base_url=url, api_key=f"tml-{name}")
    client = service.create_lora_training_client(base_model=MODEL, rank=4, seed=7)
    losses = []
    for step in range(steps):
        if paced:
            sys.stdin.readline()
        first = client.forward_backward(batch(step, 3, sdk), "cross_entropy")
        second = client.forward_backward(batch(step + 50, 1, sdk), "cross_entropy")
        update = client.optim_step(sdk.types.AdamParams(learning_rate=3e-3))
        losses += [one.result(timeout=RESULT_S).metrics["loss:sum"] for one in (first, second)]
        update.result(timeout=RESULT_S)
        print("step", step, flush=True)
    client.save_state(f"final-{name}").result(timeout=RESULT_S)
    print(json.dumps(losses), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), paced="paced" in sys.argv)
