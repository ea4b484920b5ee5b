"""Writes the tables of docs/guides/memory.md: what models and runs take in memory.

    python scripts/memory_table.py

Shapes are those of the published `config.json` files. Weights are counted by building the model
without its numbers, adapters by laying them out, caches by the size of a page. A test fails when
the page is not what this script would write.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

from tinkex.engine.adapters.layout import AdapterLayout
from tinkex.engine.messages import LoraSpec
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.families import parse_config
from tinkex.engine.model.known import KNOWN
from tinkex.engine.model.loading import read_weights
from tinkex.engine.model.tensors import Tensors
from tinkex.engine.sampling.cache.kv_cache import PAGE_SIZE, page_bytes

PAGE = Path(__file__).resolve().parent.parent / "docs" / "guides" / "memory.md"
START, END = "<!-- written by scripts/memory_table.py -->", "<!-- end of the tables -->"
GIB = 1 << 30
RANKS = (8, 32, 128)


MODELS = {
    name.partition("/")[2]: KNOWN[name]
    for name in (
        "HuggingFaceTB/SmolLM2-135M-Instruct", "Qwen/Qwen3-0.6B", "meta-llama/Llama-3.2-1B",
        "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B", "Qwen/Qwen3.5-4B", "meta-llama/Llama-3.1-8B",
        "Qwen/Qwen3-8B", "Qwen/Qwen3.5-9B", "Qwen/Qwen3-14B", "openai/gpt-oss-20b",
        "Qwen/Qwen3.6-27B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-32B", "Qwen/Qwen3.6-35B-A3B",
    )
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
