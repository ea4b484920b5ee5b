"""Models that users' scripts name, with the shapes their `config.json` files publish.

Only what decides sizes is here, so that a model can be judged before it is downloaded; a folder's
own configuration is what is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _dense(vocabulary: int, *shape: int, tied: bool = False, **rest: Any) -> dict[str, Any]:
    hidden, layers, heads, kv_heads, inner = shape
    return {
        "model_type": "llama", "vocab_size": vocabulary, "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "intermediate_size": inner, "tie_word_embeddings": tied,
        "max_position_embeddings": 131072, **rest,
    }  # fmt: skip


def _qwen3(*shape: int, tied: bool = False, **rest: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "model_type": "qwen3",
        "head_dim": 128,
        "max_position_embeddings": 40960,
    }
    return _dense(151936, *shape, tied=tied, **(known | rest))


def _qwen3_5(*shape: int, values: int = 32, **rest: Any) -> dict[str, Any]:
    """`values` are heads of the linear layers."""
    known: dict[str, Any] = {
        "model_type": "qwen3_5_text", "head_dim": 256, "max_position_embeddings": 262144,
        "linear_num_key_heads": 16, "linear_num_value_heads": values, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    }  # fmt: skip
    return _dense(248320, *shape, **(known | rest))


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    known: dict[str, Any] = {
        "model_type": "gpt_oss", "head_dim": 64, "num_local_experts": experts,
        "num_experts_per_tok": 4, "sliding_window": 128,
        "quantization_config": {"quant_method": "mxfp4"},
    }  # fmt: skip
    return _dense(201088, 2880, layers, 64, 8, 2880, **known)


_EXPERTS_30B: dict[str, Any] = {
    "model_type": "qwen3_moe", "moe_intermediate_size": 768, "num_experts": 128,
    "num_experts_per_tok": 8, "norm_topk_prob": True,
}  # fmt: skip
_EXPERTS_35B: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 512, "num_experts": 256,
    "num_experts_per_tok": 8, "shared_expert_intermediate_size": 512,
}  # fmt: skip
_9B = _qwen3_5(4096, 32, 16, 4, 12288)
_27B = _qwen3_5(5120, 64, 24, 4, 17408, values=48)
_35B_A3B = _qwen3_5(2048, 40, 16, 2, 512, **_EXPERTS_35B)

KNOWN: Mapping[str, Mapping[str, Any]] = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": _dense(
        49152, 576, 30, 9, 3, 1536, tied=True, max_position_embeddings=8192
    ),
    "meta-llama/Llama-3.2-1B": _dense(128256, 2048, 16, 32, 8, 8192, tied=True),
    "meta-llama/Llama-3.2-3B": _dense(128256, 3072, 28, 24, 8, 8192, tied=True),
    "meta-llama/Llama-3.1-8B": _dense(128256, 4096, 32, 32, 8, 14336),
    "meta-llama/Llama-3.1-8B-Instruct": _dense(128256, 4096, 32, 32, 8, 14336),
    "meta-llama/Llama-3.3-70B-Instruct": _dense(128256, 8192, 80, 64, 8, 28672),
    "Qwen/Qwen3-0.6B": _qwen3(1024, 28, 16, 8, 3072, tied=True),
    "Qwen/Qwen3-1.7B": _qwen3(2048, 28, 16, 8, 6144, tied=True),
    "Qwen/Qwen3-4B": _qwen3(2560, 36, 32, 8, 9728, tied=True),
    "Qwen/Qwen3-8B": _qwen3(4096, 36, 32, 8, 12288),
    "Qwen/Qwen3-14B": _qwen3(5120, 40, 40, 8, 17408),
    "Qwen/Qwen3-32B": _qwen3(5120, 64, 64, 8, 25600),
    "Qwen/Qwen3-30B-A3B": _qwen3(2048, 48, 32, 4, 6144, **_EXPERTS_30B),
    "Qwen/Qwen3.5-4B": _qwen3_5(2560, 32, 16, 4, 9216, tied=True),
    "Qwen/Qwen3.5-9B": _9B,
    "Qwen/Qwen3.5-9B-Base": _9B,
    "Qwen/Qwen3.6-27B": _27B,
    "Qwen/Qwen3.8-27B": _27B,
    "Qwen/Qwen3.5-35B-A3B-Base": _35B_A3B,
    "Qwen/Qwen3.6-35B-A3B": _35B_A3B,
    "openai/gpt-oss-20b": _gpt_oss(24, 32),
    "openai/gpt-oss-120b": _gpt_oss(36, 128),
}
