"""The layers of the built-in tiny models: seeded tensors under their names in files. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

LAYERS = 4
HIDDEN = 128
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 32
INTERMEDIATE = 384

EXPERTS = 8
EXPERT_INNER = 96
QWEN3_MOE: dict[str, object] = {
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": EXPERT_INNER,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}

LINEAR_HEADS = {"key": 2, "value": 4}
LINEAR_DIM = 32
CONV_WIDTH = 4
QWEN3_5: dict[str, object] = {
    "linear_num_key_heads": LINEAR_HEADS["key"],
    "linear_num_value_heads": LINEAR_HEADS["value"],
    "linear_key_head_dim": LINEAR_DIM,
    "linear_value_head_dim": LINEAR_DIM,
    "linear_conv_kernel_dim": CONV_WIDTH,
    "full_attention_interval": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
    },
}

GPT_OSS: dict[str, object] = {
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "intermediate_size": EXPERT_INNER,
    "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "attention_bias": True,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 1024,
    },
}

RESIDUAL = float(1.0 / np.sqrt(2 * LAYERS))
"""Each block adds to the stream; this keeps the sum of all of them near the embedding's size."""

Array: TypeAlias = NDArray[np.float32]
Named: TypeAlias = Iterator[tuple[str, Array]]


class Draw:
    """Numbers from a seed. What is drawn, and in which order, is part of the recipe."""

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)

    def matrix(self, rows: int, columns: int, gain: float = 1.0) -> Array:
        scale = gain / np.sqrt(columns)
        return np.asarray(self._draw.standard_normal((rows, columns)) * scale, dtype=np.float32)

    def vector(self, size: int, low: float, high: float) -> Array:
        return np.asarray(self._draw.uniform(low, high, size), dtype=np.float32)

    def norm(self, size: int, gain: float = 1.0) -> Array:
        return np.full(size, gain, dtype=np.float32)


DrawLayer: TypeAlias = Callable[[Draw, str, int], Named]
"""(numbers, the layer's name, its index) -> its tensors."""


def llama(draw: Draw, at: str, layer: int) -> Named:
    yield from _attention(draw, at, qk_norm=False)
    yield from _dense_mlp(draw, at)


def qwen3(draw: Draw, at: str, layer: int) -> Named:
    yield from _attention(draw, at, qk_norm=True)
    yield from _dense_mlp(draw, at)


def qwen3_moe(draw: Draw, at: str, layer: int) -> Named:
    yield from _attention(draw, at, qk_norm=True)
    yield from _experts(draw, at)


def qwen3_5(draw: Draw, at: str, layer: int) -> Named:
    """Norms scale by one plus their weight."""
    yield f"{at}.input_layernorm.weight", draw.norm(HIDDEN, 0.0)
    if (layer + 1) % 4:
        yield from _gated_delta(draw, f"{at}.linear_attn")
    else:
        yield from _gated_attention(draw, f"{at}.self_attn")
    yield f"{at}.post_attention_layernorm.weight", draw.norm(HIDDEN, 0.0)
    yield from _swiglu(draw, f"{at}.mlp", INTERMEDIATE)


def gpt_oss(draw: Draw, at: str, layer: int) -> Named:
    yield from _attention(draw, at, qk_norm=False)
    for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        yield f"{at}.self_attn.{part}_proj.bias", draw.vector(heads * HEAD_DIM, -0.1, 0.1)
    yield f"{at}.self_attn.o_proj.bias", draw.vector(HIDDEN, -0.1, 0.1)
    yield f"{at}.self_attn.sinks", draw.vector(HEADS, -1.0, 1.0)
    yield f"{at}.post_attention_layernorm.weight", draw.norm(HIDDEN)
    yield f"{at}.mlp.router.weight", draw.matrix(EXPERTS, HIDDEN)
    yield f"{at}.mlp.router.bias", draw.vector(EXPERTS, -0.1, 0.1)
    yield from _wide_experts(draw, f"{at}.mlp.experts")


def _wide_experts(draw: Draw, at: str) -> Named:
    """Widened and transposed, gate and up alternating."""
    ups = [draw.matrix(2 * EXPERT_INNER, HIDDEN).T for _ in range(EXPERTS)]
    downs = [draw.matrix(HIDDEN, EXPERT_INNER, RESIDUAL).T for _ in range(EXPERTS)]
    yield f"{at}.gate_up_proj", np.ascontiguousarray(np.stack(ups))
    yield f"{at}.down_proj", np.ascontiguousarray(np.stack(downs))
    biases = [draw.vector(2 * EXPERT_INNER, -0.1, 0.1) for _ in range(EXPERTS)]
    yield f"{at}.gate_up_proj_bias", np.stack(biases)
    yield f"{at}.down_proj_bias", np.zeros((EXPERTS, HIDDEN), np.float32)


def _gated_attention(draw: Draw, at: str) -> Named:
    yield f"{at}.q_proj.weight", draw.matrix(2 * HEADS * HEAD_DIM, HIDDEN)
    yield f"{at}.k_proj.weight", draw.matrix(KV_HEADS * HEAD_DIM, HIDDEN)
    yield f"{at}.v_proj.weight", draw.matrix(KV_HEADS * HEAD_DIM, HIDDEN)
    yield f"{at}.o_proj.weight", draw.matrix(HIDDEN, HEADS * HEAD_DIM, 2 * RESIDUAL)
    yield f"{at}.q_norm.weight", draw.norm(HEAD_DIM, 0.0)
    yield f"{at}.k_norm.weight", draw.norm(HEAD_DIM, 0.0)


def _gated_delta(draw: Draw, at: str) -> Named:
    heads, values = LINEAR_HEADS["value"], LINEAR_HEADS["value"] * LINEAR_DIM
    channels = 2 * LINEAR_HEADS["key"] * LINEAR_DIM + values
    yield f"{at}.in_proj_qkv.weight", draw.matrix(channels, HIDDEN)
    yield f"{at}.in_proj_z.weight", draw.matrix(values, HIDDEN)
    yield f"{at}.in_proj_b.weight", draw.matrix(heads, HIDDEN)
    yield f"{at}.in_proj_a.weight", draw.matrix(heads, HIDDEN)
    yield f"{at}.conv1d.weight", draw.matrix(channels, CONV_WIDTH)[:, None]
    yield f"{at}.A_log", draw.vector(heads, -3.0, 1.0)
    yield f"{at}.dt_bias", draw.vector(heads, -1.0, 1.0)
    yield f"{at}.norm.weight", draw.norm(LINEAR_DIM)
    yield f"{at}.out_proj.weight", draw.matrix(HIDDEN, values, 2 * RESIDUAL)


def _attention(draw: Draw, at: str, *, qk_norm: bool) -> Named:
    yield f"{at}.input_layernorm.weight", draw.norm(HIDDEN)
    yield f"{at}.self_attn.q_proj.weight", draw.matrix(HEADS * HEAD_DIM, HIDDEN)
    yield f"{at}.self_attn.k_proj.weight", draw.matrix(KV_HEADS * HEAD_DIM, HIDDEN)
    yield f"{at}.self_attn.v_proj.weight", draw.matrix(KV_HEADS * HEAD_DIM, HIDDEN)
    yield f"{at}.self_attn.o_proj.weight", draw.matrix(HIDDEN, HEADS * HEAD_DIM, RESIDUAL)
    if qk_norm:
        yield f"{at}.self_attn.q_norm.weight", draw.norm(HEAD_DIM)
        yield f"{at}.self_attn.k_norm.weight", draw.norm(HEAD_DIM)


def _dense_mlp(draw: Draw, at: str) -> Named:
    yield f"{at}.post_attention_layernorm.weight", draw.norm(HIDDEN)
    yield from _swiglu(draw, f"{at}.mlp", INTERMEDIATE)


def _experts(draw: Draw, at: str) -> Named:
    yield f"{at}.post_attention_layernorm.weight", draw.norm(HIDDEN)
    yield f"{at}.mlp.gate.weight", draw.matrix(EXPERTS, HIDDEN)
    for expert in range(EXPERTS):
        yield from _swiglu(draw, f"{at}.mlp.experts.{expert}", EXPERT_INNER)


def _swiglu(draw: Draw, at: str, inner: int) -> Named:
    yield f"{at}.gate_proj.weight", draw.matrix(inner, HIDDEN)
    yield f"{at}.up_proj.weight", draw.matrix(inner, HIDDEN)
    yield f"{at}.down_proj.weight", draw.matrix(HIDDEN, inner, RESIDUAL)
