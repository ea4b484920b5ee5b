"""One pass over SmolLM2-135M's matrices on the CPU, by the number of rows: halves against float32.

    python benchmarks/engine_products.py

Ours reads the matrices as halves (`engine.cpu.half_weights`); the alternative is oneDNN in its
own layout where it is packed, which is what matrices of more than 16 bits get. The plain product of
torch is a row of its own. Every matrix is read once a pass, so none stays in a cache; medians.
"""

from __future__ import annotations

import os

from tinkex.engine.process.parent import ENVIRONMENT

# As in an engine's own process; read when torch loads.
os.environ.update(ENVIRONMENT | os.environ)

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from report import Row, write
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.builtin.gguf import ensure_smollm2
from tinkex.engine.cpu import onednn
from tinkex.engine.cpu.half_weights import HalfProduct
from tinkex.engine.model.loading import load_decoder

ROWS = (1, 4, 8, 16, 64, 128, 256)
ROUNDS = 7
CACHE = Path.home() / ".cache" / "tinkex" / "models"


def milliseconds(products: Sequence[Callable[[Tensor], Tensor]], inputs: Sequence[Tensor]) -> float:
    start = time.perf_counter()
    for product, x in zip(products, inputs, strict=True):
        product(x)
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    torch.set_grad_enabled(False)
    matrices = [weight for _, weight, _ in load_decoder(ensure_smollm2(CACHE)).weights.products()]
    packed = [onednn.pack(weight) for weight in matrices]
    programs: dict[str, list[Callable[[Tensor], Tensor]]] = {
        "halves": [HalfProduct(weight, None, 0) for weight in matrices],
        "packed": [partial(onednn.linear, weight=each) for each in packed],
        "as it is": [partial(onednn.linear, weight=each) for each in matrices],
        "plain": [partial(F.linear, weight=each) for each in matrices],
    }
    rows = []
    for count in ROWS:
        inputs = [torch.randn(count, weight.shape[1]) for weight in matrices]
        found: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(ROUNDS):
            for name, products in programs.items():
                found[name].append(milliseconds(products, inputs))
        took = {name: statistics.median(each) for name, each in found.items()}
        what = f"{count} row{'s' * (count > 1)}"
        rows.append(Row(f"{what}, against oneDNN packed", took["halves"], "ms", took["packed"]))
        rows.append(Row(f"{what}, against oneDNN as it is", took["halves"], "ms", took["as it is"]))
        rows.append(Row(f"{what}, against torch's own", took["halves"], "ms", took["plain"]))
    note = f"Medians of {ROUNDS} rounds taken in turns, {torch.get_num_threads()} threads."
    write("engine_products", "Frozen products on the CPU, SmolLM2-135M, float32", rows, note)


if __name__ == "__main__":
    main()
