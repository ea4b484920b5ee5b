"""Runs the public cookbook's own training code against a server, on local data. A script.

    python loops.py official|tinkex BASE_URL TOKENIZER_FOLDER WORK_FOLDER [MODEL…]

It prints one line of JSON with what each loop logged; with models of other kinds only what the two
loops that people run most logged for each. With `tinkex`, every import of `tinker` inside the
cookbook gets our SDK through the alias. Nothing here is special to either.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MODEL = "Qwen/Qwen3-8B"
RENDERER = "qwen3_disable_thinking"
RANK = 8

# The cookbook's libraries reach for the network unless told not to.
os.environ.update(
    LITELLM_LOCAL_MODEL_COST_MAP="True",
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    WANDB_MODE="disabled",
)
if sys.argv[1] == "tinkex":
    import tinkex.alias

    tinkex.alias.install()

import chz
import datasets
import recipes
import tinker
from tinker_cookbook import renderers, tokenizer_utils, weights
from tinker_cookbook.distillation import train_on_policy
from tinker_cookbook.distillation.datasets import (
    DistillationDatasetConfig,
    PromptOnlyDataset,
    TeacherConfig,
)
from tinker_cookbook.preference import train_dpo
from tinker_cookbook.preference.dpo_datasets import DPODatasetBuilderFromComparisons
from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder
from tinker_cookbook.preference.types import Comparison, LabeledComparison
from tinker_cookbook.rl import train as rl_train
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.supervised import train as sft_train
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig


class Scene:
    """Where the loops run and what they may use."""

    def __init__(self, base_url: str, tokenizer: str, work: Path) -> None:
        self.base_url = base_url
        self.work = work
        self.tokenizer_folder = tokenizer

    def common(self, batch_size: int) -> ChatDatasetBuilderCommonConfig:
        return ChatDatasetBuilderCommonConfig(
            model_name_for_tokenizer=MODEL,
            renderer_name=RENDERER,
            max_length=256,
            batch_size=batch_size,
        )

    def metrics(self, loop: str) -> list[dict[str, Any]]:
        lines = (self.work / loop / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def checkpoint(self, loop: str) -> dict[str, Any]:
        lines = (self.work / loop / "checkpoints.jsonl").read_text().splitlines()
        last: dict[str, Any] = json.loads(lines[-1])
        return last


def say(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def supervised(scene: Scene) -> dict[str, Any]:
    data = scene.work / "conversations.jsonl"
    rows = [
        {"messages": [say("user", f"What is {n}?"), say("assistant", f"It is {n} apples.")]}
        for n in range(16)
    ]
    data.write_text("\n".join(json.dumps(row) for row in rows))
    config = sft_train.Config(
        log_path=str(scene.work / "sft"),
        model_name=MODEL,
        recipe_name="compat_sft",
        renderer_name=RENDERER,
        dataset_builder=FromConversationFileBuilder(
            common_config=scene.common(4), file_path=str(data), test_size=4
        ),
        learning_rate=5e-3,
        num_epochs=2,
        lora_rank=RANK,
        base_url=scene.base_url,
        save_every=2,
        eval_every=3,
    )
    asyncio.run(sft_train.main(config))
    losses = [row["train_mean_nll"] for row in scene.metrics("sft") if "train_mean_nll" in row]
    return {"losses": losses, "checkpoint": scene.checkpoint("sft")}


class LetterEnv(ProblemEnv):
    """Rewards answers with an even first byte: solvable by chance, so groups differ."""

    def get_question(self) -> str:
        return "Say a letter."

    def check_answer(self, sample_str: str) -> bool:
        return bool(sample_str) and ord(sample_str[0]) % 2 == 0

    def check_format(self, sample_str: str) -> bool:
        return True

    def get_reference_answer(self) -> str:
        return "an even letter"


class LetterDataset(RLDataset):
    def __init__(self, renderer: renderers.Renderer, batches: int) -> None:
        self._renderer = renderer
        self._batches = batches

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        make: Callable[[], ProblemEnv] = lambda: LetterEnv(self._renderer)  # noqa: E731 - typed for the builder
        return [ProblemGroupBuilder(make, num_envs=4, dataset_name="letters") for _ in range(2)]

    def __len__(self) -> int:
        return self._batches


@chz.chz
class LetterBuilder(RLDatasetBuilder):
    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        tokenizer = tokenizer_utils.get_tokenizer(MODEL)
        return LetterDataset(renderers.get_renderer(RENDERER, tokenizer), 2), None


def reinforcement(scene: Scene) -> dict[str, Any]:
    config = rl_train.Config(
        learning_rate=1e-3,
        dataset_builder=LetterBuilder(),
        model_name=MODEL,
        recipe_name="compat_rl",
        max_tokens=4,
        log_path=str(scene.work / "rl"),
        renderer_name=RENDERER,
        lora_rank=RANK,
        base_url=scene.base_url,
        save_every=1,
        eval_every=0,
        kl_penalty_coef=0.01,
        kl_reference_config=rl_train.KLReferenceConfig(base_model=MODEL),
        num_groups_to_log=0,
    )
    asyncio.run(rl_train.main(config))
    rows = scene.metrics("rl")
    return {
        "drift": [
            row["optim/kl_sample_train_v2"] for row in rows if "optim/kl_sample_train_v2" in row
        ],
        "rewards": [row["env/all/reward/total"] for row in rows if "env/all/reward/total" in row],
        "checkpoint": scene.checkpoint("rl"),
    }


@chz.chz
class FruitComparisons(ComparisonDatasetBuilder):
    def get_train_and_test_datasets(self) -> tuple[datasets.Dataset, datasets.Dataset | None]:
        return datasets.Dataset.from_list([{"question": f"Fruit {n}?"} for n in range(8)]), None

    def example_to_labeled_comparison(self, example: dict[str, Any]) -> LabeledComparison:
        comparison = Comparison(
            prompt_conversation=[say("user", example["question"])],
            completion_A=[say("assistant", "An apple.")],
            completion_B=[say("assistant", "A stone.")],
        )
        return LabeledComparison(comparison=comparison, label="A")


def preferences(scene: Scene) -> dict[str, Any]:
    config = train_dpo.Config(
        log_path=str(scene.work / "dpo"),
        model_name=MODEL,
        recipe_name="compat_dpo",
        dataset_builder=DPODatasetBuilderFromComparisons(
            common_config=scene.common(4), comparison_builder=FruitComparisons()
        ),
        renderer_name=RENDERER,
        learning_rate=1e-3,
        lora_rank=RANK,
        base_url=scene.base_url,
        save_every=0,
        eval_every=0,
    )
    train_dpo.main(config)
    losses = [row["dpo_loss"] for row in scene.metrics("dpo") if "dpo_loss" in row]
    return {"losses": losses, "checkpoint": scene.checkpoint("dpo")}


@chz.chz
class PromptBuilder(RLDatasetBuilder):
    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        tokenizer = tokenizer_utils.get_tokenizer(MODEL)
        renderer = renderers.get_renderer(RENDERER, tokenizer)
        prompts = [f"Tell me about {n}." for n in range(4)]
        return PromptOnlyDataset(prompts, 2, 2, renderer, tokenizer), None


def distillation(scene: Scene, teacher: str) -> dict[str, Any]:
    config = train_on_policy.Config(
        learning_rate=1e-3,
        dataset_configs=[
            DistillationDatasetConfig(
                dataset_builder=PromptBuilder(),
                teacher_config=TeacherConfig(base_model=MODEL, load_checkpoint_path=teacher),
                groups_per_batch=2,
            )
        ],
        model_name=MODEL,
        recipe_name="compat_distill",
        renderer_name=RENDERER,
        max_tokens=4,
        lora_rank=RANK,
        log_path=str(scene.work / "distill"),
        base_url=scene.base_url,
        save_every=0,
        eval_every=0,
    )
    asyncio.run(train_on_policy.main(config))
    found = [row["teacher_kl"] for row in scene.metrics("distill") if "teacher_kl" in row]
    return {"teacher_kl": found, "checkpoint": scene.checkpoint("distill")}


def export(scene: Scene, state_path: str, sampler_path: str) -> dict[str, Any]:
    """Download every kind of checkpoint the SDK can, and merge one into its base model."""
    adapter = weights.download(
        tinker_path=state_path, output_dir=str(scene.work / "adapter"), base_url=scene.base_url
    )
    weights.build_hf_model(
        base_model=scene.tokenizer_folder,
        adapter_path=adapter,
        output_path=str(scene.work / "merged"),
        dtype="float32",
    )
    report = {
        "adapter": sorted(path.name for path in Path(adapter).iterdir()),
        "merged": sorted(path.name for path in (scene.work / "merged").iterdir()),
    }
    if hasattr(
        tinker.lib.public_interfaces.RestClient, "get_checkpoint_archive_url_from_tinker_path"
    ):
        archive = weights.download(
            tinker_path=sampler_path,
            output_dir=str(scene.work / "archive"),
            base_url=scene.base_url,
        )
        report["archive"] = sorted(path.name for path in Path(archive).iterdir())
    return report


def other_kinds(base_url: str, tokenizer: str, work: str, models: Sequence[str]) -> dict[str, Any]:
    """Supervised and reinforcement learning, and learning by preferences, on each of these."""
    global MODEL
    report: dict[str, Any] = {"sdk": tinker.__name__}
    for number, MODEL in enumerate(models):  # the loops above read it
        folder = Path(work) / str(number)
        folder.mkdir()
        scene = Scene(base_url, tokenizer, folder)
        loops = (supervised, reinforcement, preferences)
        report[MODEL] = {loop.__name__: loop(scene) for loop in loops}
    return report


def main(base_url: str, tokenizer: str, work: str, *models: str) -> None:
    from transformers import AutoTokenizer

    for model in models or (MODEL,):
        tokenizer_utils.register_tokenizer(model, lambda: AutoTokenizer.from_pretrained(tokenizer))
    if models:
        print(json.dumps(other_kinds(base_url, tokenizer, work, models)))
        return
    scene = Scene(base_url, tokenizer, Path(work))
    report = {"sdk": tinker.__name__, "supervised": supervised(scene)}
    taught = report["supervised"]["checkpoint"]
    report["reinforcement"] = reinforcement(scene)
    report["preferences"] = preferences(scene)
    report["distillation"] = distillation(scene, taught["sampler_path"])
    where = (scene.work, base_url, MODEL, RENDERER)
    report["turns"] = recipes.several_turns(*where)
    report["self_distillation"] = recipes.self_distillation(*where)
    report["export"] = export(scene, taught["state_path"], taught["sampler_path"])
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[2:])
