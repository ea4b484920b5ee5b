"""Train, download, load in PEFT, merge into the base model: the weights are yours to take away.

The checkpoint is PEFT's own layout. The example scores one text with the served sampler, with PEFT,
and with the merged model, and the three must agree. It starts a server of its own in float32, so
that nothing but the weights can make a difference.

    python examples/export_peft.py --local
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import chat
import connection
import curve
import serving
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

import tinkex
from tinkex.cli.main import run as tinkex_command

TEXT = "An adapter that only one server can read is not an export."
ADAM = tinkex.AdamParams(learning_rate=2e-3)
KEY = "tml-local"
TOLERANCE = 1e-3


def main() -> None:
    options = connection.parse(__doc__, steps=8)
    if options.base_url:
        export(options.base_url, options)
        return
    with serving.served([options.model], ["--dtype", "float32"]) as server:
        export(server.address, options)


def export(address: str, options: connection.Options) -> None:
    with (
        tinkex.ServiceClient(base_url=address, api_key=KEY) as service,
        tempfile.TemporaryDirectory() as folder,
    ):
        training = service.create_lora_training_client(options.model, rank=8, seed=1)
        info = training.get_info()
        tokens = training.get_tokenizer().encode(TEXT, add_special_tokens=False)
        losses = train(training, tokens, options.steps)
        path = training.save_state("export", ttl_seconds=3600).result().path
        sampler = training.save_weights_and_get_sampling_client()
        served = sampler.compute_logprobs(tinkex.ModelInput.from_ints(tokens)).result()[1:]
        with connection.timed("download"):
            adapter = download(address, path, Path(folder))
        with connection.timed("load in PEFT and merge"):
            scores = peft_scores(str(info.model_data.tokenizer_id), adapter, tokens)
    compare(served, scores)
    print("curve:", curve.draw(options.out / "export_peft.png", {"loss": losses}))


def train(training: tinkex.TrainingClient, tokens: list[int], steps: int) -> list[float]:
    data = [chat.next_token_datum(tokens, [1.0] * len(tokens))]
    losses = []
    for _ in range(steps):
        gradients = training.forward_backward(data, "cross_entropy")
        training.optim_step(ADAM).result()
        losses.append(chat.mean_loss(gradients.result(), data))
    return losses


def download(address: str, path: str, folder: Path) -> Path:
    """`tinkex checkpoint download`, called as a function."""
    where = ["--base-url", address, "--api-key", KEY]
    result = tinkex_command(["checkpoint", "download", path, "-o", str(folder), *where])
    if result.exit_code:
        raise SystemExit(f"the download failed with exit code {result.exit_code}")
    return next(folder.rglob("adapter_config.json")).parent


def peft_scores(base_folder: str, adapter: Path, tokens: list[int]) -> dict[str, list[float]]:
    """Logprobs of every token after the first, with the adapter beside and inside the base."""
    base = AutoModelForCausalLM.from_pretrained(base_folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, adapter)
    beside = logprobs(model, tokens)
    merged = logprobs(model.merge_and_unload(), tokens)
    return {"PEFT": beside, "merged": merged}


@torch.no_grad()
def logprobs(model: torch.nn.Module, tokens: list[int]) -> list[float]:
    ids = torch.tensor([tokens])
    rows = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
    return rows.gather(1, ids[0, 1:, None])[:, 0].tolist()


def compare(served: list[float | None], scores: dict[str, list[float]]) -> None:
    for name, values in scores.items():
        difference = max(abs(a - b) for a, b in zip(served, values, strict=True) if a is not None)
        print(f"served and {name} differ by at most {difference:.1e} (tolerance {TOLERANCE})")
        if difference > TOLERANCE:
            raise SystemExit(f"the {name} model does not give the served numbers")


if __name__ == "__main__":
    main()
