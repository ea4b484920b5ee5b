"""The public cookbook's supervised trainer on a local JSONL file, whichever `tinker` is loaded.

Imports the cookbook, and with it `tinker`, only when called: the caller decides first whether that
name means the official SDK or ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import connection
import curve

DATA = Path(__file__).parent / "data" / "lighthouse.jsonl"
RENDERER = "qwen3_disable_thinking"  # ChatML


def train(address: str, options: connection.Options, name: str) -> None:
    """Run `options.steps` steps of the cookbook's own loop and draw its loss."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TINKER_API_KEY", "tml-local")
    import tinker
    from tinker_cookbook.supervised import train as supervised

    log = _emptied(options.out / name)
    start = time.perf_counter()
    with tinker.ServiceClient(base_url=address) as service:
        _use_served_tokenizer(service, options.model)
        asyncio.run(supervised.main(_config(address, options, log)))
    print(f"{options.steps} steps of the cookbook's trainer: {time.perf_counter() - start:.1f} s")
    rows = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    losses = [row["train_mean_nll"] for row in rows if "train_mean_nll" in row]
    print(f"mean NLL: {losses[0]:.3f} -> {losses[-1]:.3f}")
    print("curve:", curve.draw(options.out / f"{name}.png", {"nll": losses}))


def _config(address: str, options: connection.Options, log: Path) -> Any:
    from tinker_cookbook.renderers import TrainOnWhat
    from tinker_cookbook.supervised import train as supervised
    from tinker_cookbook.supervised.data import FromConversationFileBuilder
    from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=options.model,
        renderer_name=RENDERER,
        max_length=256,
        batch_size=4,
        train_on_what=TrainOnWhat.LAST_ASSISTANT_MESSAGE,
    )
    return supervised.Config(
        log_path=str(log),
        model_name=options.model,
        recipe_name="example",
        renderer_name=RENDERER,
        dataset_builder=FromConversationFileBuilder(common_config=common, file_path=str(DATA)),
        base_url=address,
        learning_rate=2e-3,
        lora_rank=8,
        num_epochs=options.steps,
        max_steps=options.steps,
        save_every=0,
        eval_every=0,
        infrequent_eval_every=0,
    )


def _use_served_tokenizer(service: Any, model: str) -> None:
    """The cookbook asks the hub for tokenizers; the server names a folder this machine has."""
    from tinker_cookbook.tokenizer_utils import register_tokenizer
    from transformers import AutoTokenizer

    info = service.create_lora_training_client(model, rank=4).get_info()
    folder = info.model_data.tokenizer_id
    register_tokenizer(model, lambda: AutoTokenizer.from_pretrained(folder))


def _emptied(log: Path) -> Path:
    """The cookbook resumes from what it finds in its log folder; an example starts afresh."""
    for name in ("metrics.jsonl", "checkpoints.jsonl"):
        (log / name).unlink(missing_ok=True)
    return log
