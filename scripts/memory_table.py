"""Writes the tables of docs/guides/memory.md: what models and runs take in memory.

    python scripts/memory_table.py

Shapes are those of the published `config.json` files. Weights are counted by building the model
without its numbers, adapters by laying them out, caches by the size of a page. A test fails when
the page is not what this script would write.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinkex.engine.adapters.layout import AdapterLayout
from tinkex.engine.messages import LoraSpec
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.families import parse_config
from tinkex.engine.model.loading import read_weights
from tinkex.engine.model.tensors import Tensors
from tinkex.engine.sampling.cache.kv_cache import PAGE_SIZE, page_bytes

PAGE = Path(__file__).resolve().parent.parent / "docs" / "guides" / "memory.md"
START, END = "<!-- written by scripts/memory_table.py -->", "<!-- end of the tables -->"
GIB = 1 << 30
RANKS = (8, 32, 128)


def _llama(
    hidden: int, layers: int, heads: int, kv: int, inner: int, **rest: Any
) -> dict[str, Any]:
    return {
        "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "intermediate_size": inner,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "rope_theta": 5e5, **rest,
    }  # fmt: skip


def _qwen3(*shape: int, tied: bool) -> dict[str, Any]:
    rest = {"model_type": "qwen3", "head_dim": 128, "vocab_size": 151936}
    return _llama(*shape, **rest, tie_word_embeddings=tied)


MODELS: dict[str, dict[str, Any]] = {
    "SmolLM2-135M": _llama(576, 30, 9, 3, 1536, vocab_size=49152, tie_word_embeddings=True),
    "Qwen3-0.6B": _qwen3(1024, 28, 16, 8, 3072, tied=True),
    "Llama-3.2-1B": _llama(2048, 16, 32, 8, 8192, vocab_size=128256, tie_word_embeddings=True),
    "Qwen3-1.7B": _qwen3(2048, 28, 16, 8, 6144, tied=True),
    "Qwen3-4B": _qwen3(2560, 36, 32, 8, 9728, tied=True),
    "Llama-3.1-8B": _llama(4096, 32, 32, 8, 14336, vocab_size=128256),
    "Qwen3-8B": _qwen3(4096, 36, 32, 8, 12288, tied=False),
    "Qwen3-14B": _qwen3(5120, 40, 40, 8, 17408, tied=False),
    "Qwen3-32B": _qwen3(5120, 64, 64, 8, 25600, tied=False),
    "Qwen3-30B-A3B": {
        **_qwen3(2048, 48, 32, 4, 6144, tied=False),
        "model_type": "qwen3_moe", "moe_intermediate_size": 768, "num_experts": 128,
        "num_experts_per_tok": 8, "norm_topk_prob": True,
    },
}  # fmt: skip


class Counted(Tensors):
    """Tensors without numbers; `parameters` is how many were asked for."""

    parameters = 0

    def has(self, name: str) -> bool:
        return True

    def bytes(self, name: str, shape: tuple[int, ...]) -> Tensor:
        raise NotImplementedError("counted models are not packed")

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        made = torch.empty(shape, dtype=self.dtype, device=self.device)
        self.parameters += made.numel()
        return made


def parameters(config: ModelConfig) -> int:
    """How many numbers the model's weights are."""
    counted = Counted(torch.device("meta"), torch.bfloat16)
    read_weights(config, counted)
    return counted.parameters


def run_bytes(config: ModelConfig, rank: int, width: int) -> int:
    """What a run keeps in memory: master weights, mean, variance and gradient in float32, and on a
    GPU a working copy in the model's dtype."""
    size = AdapterLayout(config, LoraSpec(rank)).size
    return size * (16 if width == 4 else 16 + width)


def tables() -> str:
    """Both tables, for a GPU in bfloat16 and a CPU in float32."""
    headings = ["model", "parameters", "weights", "cache per 1,000 tokens"]
    headings += [f"run, rank {rank}" for rank in RANKS]
    head = f"| {' | '.join(headings)} |\n{'|---' * len(headings)}|"
    parts = []
    for title, dtype in (
        ("On a GPU, bfloat16", torch.bfloat16),
        ("On a CPU, float32", torch.float32),
    ):
        rows = [_row(name, parse_config(raw), dtype) for name, raw in MODELS.items()]
        parts.append(f"## {title}\n\n{head}\n" + "\n".join(rows))
    return "\n\n".join(parts)


def _row(name: str, config: ModelConfig, dtype: torch.dtype) -> str:
    count, width = parameters(config), dtype.itemsize
    cache = page_bytes(config, dtype) / PAGE_SIZE * 1000
    runs = [_size(run_bytes(config, rank, width)) for rank in RANKS]
    cells = [name, f"{count / 1e9:.2f} B", _size(count * width), _size(cache), *runs]
    return f"| {' | '.join(cells)} |"


def _size(size: float) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / (1 << 20):.0f} MiB"


def written(page: str) -> str:
    """`page` with the tables put between their marks."""
    before, rest = page.split(START)
    return f"{before}{START}\n\n{tables()}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE}", file=sys.stderr)


if __name__ == "__main__":
    main()
