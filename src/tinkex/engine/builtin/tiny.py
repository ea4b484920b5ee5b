"""Tiny models made in code from a seed and written as Hugging Face folders.

They know no language. Their point is to be real models of real families that load in a moment,
learn within a few steps and need no download. No torch here: numpy makes the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tinkex.engine.builtin import tiny_layers, tiny_tokenizer
from tinkex.engine.builtin.atomic_folder import publish_folder, write_json
from tinkex.engine.builtin.tiny_layers import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    KV_HEADS,
    LAYERS,
    Draw,
    DrawLayer,
)

RECIPE = 1
"""Part of the folder's name; raise it whenever the files below would change."""

CONTEXT = 4096
FINAL_GAIN = 4.0
"""Gain of the last norm. The unembedding is smaller by the same factor, so the logits stay near
one while a small change of weights moves them four times as far: adapters learn in few steps."""


@dataclass(frozen=True, slots=True)
class TinyModel:
    architecture: str  # as `config.json` names the class
    model_type: str  # as `config.json` names the family
    seed: int  # of its weights
    template: str  # its chat template
    layer: DrawLayer  # draws one layer's tensors
    extra: Mapping[str, object] = field(default_factory=dict)
    """What its `config.json` says beyond what all say."""
    final_offset: float = 0.0
    """Added to the last norm's weight, where norms add one themselves."""


TINY_MODELS = {
    "tinkex/tiny-llama": TinyModel(
        "LlamaForCausalLM", "llama", 11, tiny_tokenizer.PLAIN_TEMPLATE, tiny_layers.llama
    ),
    "tinkex/tiny-qwen3": TinyModel(
        "Qwen3ForCausalLM", "qwen3", 13, tiny_tokenizer.THINKING_TEMPLATE, tiny_layers.qwen3
    ),
    "tinkex/tiny-qwen3-moe": TinyModel(
        "Qwen3MoeForCausalLM", "qwen3_moe", 17, tiny_tokenizer.THINKING_TEMPLATE,
        tiny_layers.qwen3_moe, tiny_layers.QWEN3_MOE,
    ),
    "tinkex/tiny-qwen3.5": TinyModel(
        "Qwen3_5ForCausalLM", "qwen3_5_text", 19, tiny_tokenizer.THINKING_TEMPLATE,
        tiny_layers.qwen3_5, tiny_layers.QWEN3_5, final_offset=-1.0,
    ),
    "tinkex/tiny-gpt-oss": TinyModel(
        "GptOssForCausalLM", "gpt_oss", 23, tiny_tokenizer.THINKING_TEMPLATE,
        tiny_layers.gpt_oss, tiny_layers.GPT_OSS,
    ),
}  # fmt: skip


def ensure_tiny(name: str, cache: Path) -> Path:
    """The folder of a built-in tiny model under `cache`, written now if it is not there yet."""
    if name not in TINY_MODELS:
        known = ", ".join(sorted(TINY_MODELS))
        raise ValueError(f"model {name!r} is not a built-in tiny model; there are: {known}")
    model = TINY_MODELS[name]
    folder = cache / f"{name.replace('/', '--')}-{RECIPE}"
    return publish_folder(folder, lambda draft: _write(draft, model))


def _write(folder: Path, model: TinyModel) -> None:
    write_json(folder / "config.json", _config(model))
    write_json(folder / "generation_config.json", _generation_config())
    tiny_tokenizer.write_tokenizer(folder, template=model.template, max_length=CONTEXT)
    tensors = dict(_tensors(model))
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


def _config(model: TinyModel) -> dict[str, object]:
    return {
        "architectures": [model.architecture],
        "model_type": model.model_type,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": tiny_tokenizer.VOCAB_SIZE,
        "max_position_embeddings": CONTEXT,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eos_token_id": tiny_tokenizer.EOS_ID,
        "pad_token_id": tiny_tokenizer.PAD_ID,
        **model.extra,
    }


def _generation_config() -> dict[str, object]:
    return {
        "eos_token_id": [tiny_tokenizer.EOS_ID, tiny_tokenizer.PAD_ID],
        "pad_token_id": tiny_tokenizer.PAD_ID,
        "do_sample": True,
    }


def _tensors(model: TinyModel) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Every parameter in a fixed order: the order is part of the recipe."""
    draw = Draw(model.seed)
    vocab = tiny_tokenizer.VOCAB_SIZE
    yield "model.embed_tokens.weight", draw.matrix(vocab, HIDDEN, np.sqrt(HIDDEN))
    for layer in range(LAYERS):
        yield from model.layer(draw, f"model.layers.{layer}", layer)
    yield "model.norm.weight", draw.norm(HIDDEN, FINAL_GAIN + model.final_offset)
    yield "lm_head.weight", draw.matrix(vocab, HIDDEN, 1.0 / FINAL_GAIN)
