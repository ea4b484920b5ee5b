"""Recipes of the public cookbook as they are, on data made here. Imported by `loops`, which decides
first whose `tinker` they get."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import datasets
from tinker_cookbook.recipes.multiplayer_rl.guess_number.env import GuessNumberDatasetBuilder
from tinker_cookbook.recipes.sdft import train as sdft_recipe
from tinker_cookbook.rl import train as rl_train


def rows(log: Path, name: str) -> list[Any]:
    """What a recipe logged under `name`, step by step."""
    lines = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


def several_turns(work: Path, base_url: str, model: str, renderer: str) -> dict[str, Any]:
    """An environment that answers: each sample becomes part of the next prompt."""
    log = work / "turns"
    config = rl_train.Config(
        learning_rate=1e-3,
        dataset_builder=GuessNumberDatasetBuilder(
            batch_size=2, renderer_name=renderer, train_group_size=2, model_name=model
        ),
        model_name=model,
        recipe_name="compat_turns",
        max_tokens=4,
        log_path=str(log),
        renderer_name=renderer,
        lora_rank=4,
        base_url=base_url,
        save_every=0,
        eval_every=0,
        max_steps=1,
        num_groups_to_log=0,
    )
    asyncio.run(rl_train.main(config))
    return {
        "turns": rows(log, "env/all/turns_per_episode"),
        "drift": rows(log, "optim/kl_sample_train_v2"),
    }


def self_distillation(work: Path, base_url: str, model: str, renderer: str) -> dict[str, Any]:
    """A teacher's best tokens per position as soft targets: two-dimensional loss inputs."""
    log, data = work / "sdft", work / "tools"
    examples = [{"prompt": f"Call {n}.", "golden_response": f"tool({n})"} for n in range(8)]
    datasets.Dataset.from_list(examples).save_to_disk(str(data))
    config = sdft_recipe.CLIConfig(
        model_name=model,
        renderer_name=renderer,
        dataset="toolalpaca",
        toolalpaca_data_path=str(data),
        groups_per_batch=2,
        max_tokens=4,
        topk=5,
        lora_rank=4,
        eval_every=0,
        save_every=0,
        max_steps=2,
        log_path=str(log),
        base_url=base_url,
        behavior_if_log_dir_exists="delete",
    )
    asyncio.run(sdft_recipe.cli_main(config))
    return {
        "entropy": rows(log, "sdft/mean_teacher_entropy"),
        "gradients": rows(log, "optim/grad_norm"),
    }
