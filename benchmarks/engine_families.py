"""Training and decoding of every kind of block, with seeded weights of true shapes or small ones.

Training: tokens per second of a rank-32 step over packed sequences, optimizer included, one run.
Decoding: tokens per second at several batch sizes, with no adapter and with one on all modules.
The engine alone, no server. True shapes need a GPU that holds them in bfloat16.

    python benchmarks/engine_families.py [--small] [--layers N] [--only train|decode] [FAMILY ...]
"""

from __future__ import annotations

import argparse
import gc
from typing import Any

import torch
from engine_gpu import RANK, decode_rate, train_rate
from report import Row, write
from seeded_model import seeded_decoder

from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.families import parse_config

_ATTENTION = {
    "vocab_size": 151936, "hidden_size": 2048, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}  # fmt: skip
_HYBRID = {
    "vocab_size": 248320, "num_attention_heads": 16, "head_dim": 256,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-30b-a3b": _ATTENTION | {
        "model_type": "qwen3_moe", "num_hidden_layers": 48, "intermediate_size": 6144,
        "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
        "norm_topk_prob": True,
    },
    "qwen3.5-9b": _HYBRID | {
        "model_type": "qwen3_5_text", "num_hidden_layers": 32, "hidden_size": 4096,
        "intermediate_size": 12288, "num_key_value_heads": 4,
    },
    "qwen3.6-35b-a3b": _HYBRID | {
        "model_type": "qwen3_5_moe_text", "num_hidden_layers": 40, "hidden_size": 2048,
        "num_key_value_heads": 2, "moe_intermediate_size": 512, "num_experts": 256,
        "num_experts_per_tok": 8, "shared_expert_intermediate_size": 512,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880,
        "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32,
        "num_experts_per_tok": 4, "sliding_window": 128, "max_position_embeddings": 131072,
    },
}  # fmt: skip
SMALL: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "num_experts": 16,
    "num_local_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
}  # fmt: skip
TARGETS = {
    "qwen3-30b-a3b": "≥ 13,000 tokens/s",
    "qwen3.5-9b": "≥ 13,000 tokens/s",
    "qwen3.6-35b-a3b": "≥ 18,000 tokens/s",
    "gpt-oss-20b": "≥ 15,000 tokens/s",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*", help=f"of {', '.join(SHAPES)}; all by default")
    parser.add_argument("--small", action="store_true", help="small shapes, for a CPU")
    parser.add_argument("--layers", type=int, help="fewer layers than the true shape has")
    parser.add_argument("--only", choices=("train", "decode"), help="leave the other part out")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows: list[Row] = []
    for name in asked.families or SHAPES:
        decoder = build(name, asked.small, asked.layers, device)
        label = f"{name}, {len(decoder.config.layers)} layers" if asked.layers else name
        rows.extend(measure(label, decoder, asked.only, asked.small, TARGETS[name]))
        del decoder
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    what = "small shapes" if asked.small else "true shapes"
    note = f"Seeded weights, {what}, {device.type}. One run of rank {RANK} on all modules."
    write("engine_families" + ("_small" if asked.small else ""), "Families of models", rows, note)


def build(name: str, small: bool, layers: int | None, device: torch.device) -> Decoder:
    shape = dict(SHAPES[name])
    if small:
        shape |= {key: value for key, value in SMALL.items() if key in shape}
    if layers is not None:
        shape["num_hidden_layers"] = layers
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return seeded_decoder(parse_config(shape), device, dtype)


def measure(name: str, decoder: Decoder, only: str | None, small: bool, target: str) -> list[Row]:
    rows = []
    if only != "decode":
        length = 256 if small else 4096
        rate = train_rate(decoder, 1, length)
        label = f"{name}: train, 8 × {length} packed"
        rows.append(Row(label, rate, "tokens/s", higher_is_better=True, target=target))
    for batch, adapters in ((1, 0), (32, 0), (128, 0), (32, 1)) if only != "train" else ():
        rate, _ = decode_rate(decoder, batch, adapters, small)
        label = f"{name}: decode, batch {batch}, {adapters} adapter(s)"
        rows.append(Row(label, rate, "tokens/s", higher_is_better=True))
    return rows


if __name__ == "__main__":
    main()
