"""Small seeded transformers models of every family, written to folders like published ones."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

SHAPE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}
PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

# Name -> the transformers configuration class and what sets it apart.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama3-rope-biased": (
        "LlamaConfig",
        {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True, "head_dim": 24},
    ),
    "smollm2": ("LlamaConfig", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "mistral": ("MistralConfig", {"sliding_window": 16, "head_dim": 16}),
    "ministral": (
        "MinistralConfig",
        {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
        | {"head_dim": 16},
    ),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen2-window-yarn": (
        "Qwen2Config",
        {
            "use_sliding_window": True,
            "sliding_window": 16,
            "max_window_layers": 1,
            "rope_parameters": YARN,
        },
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 32, "rope_parameters": LINEAR}),
    "smollm3": ("SmolLM3Config", {"no_rope_layer_interval": 2}),
    "granite": (
        "GraniteConfig",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.5,
        },
    ),
    "olmo3": (
        "Olmo3Config",
        {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "sliding_window": 16,
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "full_attention"],
            "initializer_range": 0.08,
        },
    ),
}


# Families whose adapters PEFT cannot hold: their reference is `support.lora_reference`.
MOE = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "head_dim": 16,
}
HYBRID = {
    # Larger ones make gradients so steep that two float32 computations differ by more than 1e-4,
    # either from float64 by half of that.
    "initializer_range": 0.08,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "linear_conv_kernel_dim": 4,
}
GPT_OSS = {
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": 16,
    "head_dim": 16,
    "intermediate_size": 40,
}
BLOCK_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-moe": ("Qwen3MoeConfig", MOE),
    "qwen3-moe-mixed": (
        "Qwen3MoeConfig",
        MOE
        | {"num_experts": 33, "num_experts_per_tok": 5, "norm_topk_prob": False}
        | {"mlp_only_layers": [0], "tie_word_embeddings": True}
        | {"use_sliding_window": True, "sliding_window": 16},
    ),
    "qwen3.5": ("Qwen3_5TextConfig", HYBRID),
    "qwen3.5-tied": (
        "Qwen3_5TextConfig",
        HYBRID
        | {"layer_types": ["full_attention", "linear_attention", "linear_attention"]}
        | {"num_hidden_layers": 3, "tie_word_embeddings": True, "linear_num_value_heads": 2},
    ),
    "qwen3.5-moe": (
        "Qwen3_5MoeTextConfig",
        HYBRID
        | {"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
        | {"shared_expert_intermediate_size": 40},
    ),
    "phi3": ("Phi3Config", {"sliding_window": 16, "rope_parameters": PARTIAL}),
    "gpt-oss": ("GptOssConfig", GPT_OSS),
    "gpt-oss-packable": ("GptOssConfig", GPT_OSS | {"intermediate_size": 32}),
    "gpt-oss-full": (
        "GptOssConfig",
        GPT_OSS
        | {"layer_types": ["full_attention"] * 2, "num_local_experts": 31, "head_dim": 24}
        | {"num_experts_per_tok": 4, "rope_parameters": YARN | {"truncate": False}},
    ),
}

FOUR_HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-four-heads": (
        "LlamaConfig",
        {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    ),
    "qwen3-moe-four-heads": (
        "Qwen3MoeConfig",
        MOE | {"num_key_value_heads": 4, "num_experts": 8, "num_experts_per_tok": 3},
    ),
}
"""For four ranks, each of which needs a head of keys and values."""


# What transformers takes from libraries of GPU kernels where they are installed; it would call them
# on a CPU's tensors too, and the reference runs on a CPU.
_KERNELS = (
    "FusedRMSNormGated", "chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule",
    "causal_conv1d_fn", "causal_conv1d_update",
)  # fmt: skip


def _without_kernels() -> None:
    for family in ("qwen3_5", "qwen3_5_moe"):
        module = import_module(f"transformers.models.{family}.modeling_{family}")
        for name in _KERNELS:
            setattr(module, name, None)


def make_reference(name: str) -> Any:
    """A float32 transformers model with every parameter random, norms and biases included."""
    if name.startswith("qwen3.5"):
        _without_kernels()
    kind, extra = (FAMILIES | BLOCK_FAMILIES | FOUR_HEADS)[name]
    config = getattr(transformers, kind)(**(SHAPE | extra))
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1 or parameter.abs().max() == 0:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def save_reference(
    name: str, folder: Path, shard: str = "40KB", stored: torch.dtype = torch.float32
) -> Any:
    """Write the model as sharded safetensors of the dtype `stored`; returns it in float32."""
    model = make_reference(name)
    for parameter in model.parameters():  # and not the buffers: angles stay float32
        parameter.data = parameter.data.to(stored)
    model.save_pretrained(folder, max_shard_size=shard)
    return model.float()


def packed_experts(count: int, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random blocks and scales of MXFP4."""
    draw = torch.Generator().manual_seed(rows)
    blocks = torch.randint(0, 256, (count, rows, columns // 32, 16), generator=draw)
    scales = torch.randint(118, 124, (count, rows, columns // 32), generator=draw)
    return blocks.to(torch.uint8), scales.to(torch.uint8)


def save_packed_gpt_oss(folder: Path) -> Path:
    """A gpt-oss whose experts are packed as published ones are."""
    save_reference("gpt-oss-packable", folder, shard="1GB")
    return pack_experts(folder)


def pack_experts(folder: Path) -> Path:
    """Random experts in MXFP4 in place of those in a gpt-oss folder."""
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        count, columns, rows = tensors.pop(name).shape
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = packed_experts(count, rows, columns)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
