"""A client in a process of its own: `trainer.py SDK URL` does what it reads, a line each.

train RUN FIRST LAST     steps of a run, all sent before the first is awaited
save RUN NAME            its path
export RUN NAME          the address of an export's tensors
archive PATH             the address of all files in one; the official SDK has no such call
delete PATH
"""

from __future__ import annotations

import importlib
import random
import sys
from typing import Any

MODEL = "tinkex/tiny-llama"
TOKENS, SEQUENCES = 400, 12
"""Enough that a body does not fit into a row."""


class Trainer:
    def __init__(self, name: str, url: str) -> None:
        self.sdk: Any = importlib.import_module(name)
        self.about = {"base_url": url, "api_key": f"tml-{name}"}
        self.service = self.sdk.ServiceClient(**self.about)
        self.runs: dict[str, Any] = {}

    def run(self, name: str) -> Any:
        """All runs are alike until they are trained."""
        if name not in self.runs:
            create = self.service.create_lora_training_client
            self.runs[name] = create(base_model=MODEL, rank=4, seed=5)
        return self.runs[name]

    def train(self, name: str, first: str, last: str) -> str:
        run, sent = self.run(name), []
        for number in range(int(first), int(last)):
            sent.append(run.forward_backward(self.batch(number), "cross_entropy"))
            sent.append(run.optim_step(self.sdk.types.AdamParams(learning_rate=1e-2)))
        for future in sent:
            future.result()
        return "trained"

    def save(self, name: str, path: str) -> str:
        return str(self.run(name).save_state(name=path).result().path)

    def export(self, name: str, path: str) -> str:
        saved = self.run(name).save_weights_external(name=path).result()
        rest = self.sdk.RestClient(**self.about)
        urls = rest.get_external_weights_urls(saved.path).result().urls
        return str(urls["adapter_model.safetensors"])

    def archive(self, path: str) -> str:
        rest = importlib.import_module("tinkex").RestClient(**self.about)
        return str(rest.get_checkpoint_archive_url_from_tinker_path(path).result().url)

    def delete(self, path: str) -> str:
        self.sdk.RestClient(**self.about).delete_checkpoint_from_tinker_path(path).result()
        return "deleted"

    def batch(self, number: int) -> list[Any]:
        dice, types = random.Random(number), self.sdk.types
        rows = [[dice.randrange(1, 200) for _ in range(TOKENS + 1)] for _ in range(SEQUENCES)]
        return [
            types.Datum(
                model_input=types.ModelInput.from_ints(row[:-1]),
                loss_fn_inputs={"target_tokens": row[1:], "weights": [1.0] * TOKENS},
            )
            for row in rows
        ]


def main() -> None:
    trainer = Trainer(*sys.argv[1:])
    for line in sys.stdin:
        word, *arguments = line.split()
        print("answer", getattr(trainer, word)(*arguments), flush=True)


if __name__ == "__main__":
    main()
