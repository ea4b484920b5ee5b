"""Products of few rows with frozen matrices on a GPU: ours in a chain of kernels, and a library's.

A chain is a norm and a product for each of so many layers, each with a matrix of its own, captured
as one graph; with a gate, the gate as well. Ours are timed in several tilings, started early and
not; the library's is what decode steps used before. The limit is one read of the matrices.

    python benchmarks/engine_few_rows.py [--rows 1,32] [--only NAME] [--sweep]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from tinkex.engine.kernels import dependent_launch, elementwise, few_rows
from tinkex.engine.kernels.few_rows import Tiling

SHAPES: dict[str, tuple[int, int, bool]] = {
    "8b qkv": (6144, 4096, False),
    "8b o": (4096, 4096, False),
    "8b gate_up": (12288, 4096, True),
    "8b down": (4096, 12288, False),
    "8b head": (151936, 4096, False),
    "30b-a3b qkv": (5120, 2048, False),
    "30b-a3b o": (2048, 4096, False),
    "gpt-oss qkv": (5120, 2880, False),
    "gpt-oss o": (2880, 4096, False),
}
TILINGS = [
    Tiling(64, 256, 4, 3), Tiling(64, 128, 4, 4), Tiling(64, 128, 4, 6), Tiling(64, 64, 4, 8),
    Tiling(32, 512, 4, 3), Tiling(32, 512, 8, 3), Tiling(32, 256, 4, 4), Tiling(32, 256, 4, 6),
    Tiling(16, 512, 2, 3), Tiling(16, 512, 2, 4), Tiling(16, 1024, 4, 3), Tiling(16, 256, 1, 6),
    Tiling(128, 128, 8, 3), Tiling(128, 64, 8, 5),
]  # fmt: skip
BYTES = 8e9


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", default="1,32,64")
    parser.add_argument("--only", default="")
    parser.add_argument("--sweep", action="store_true")
    asked = parser.parse_args()
    big = torch.empty(1 << 30, dtype=torch.int32, device="cuda")
    other = torch.empty_like(big)
    copy = milliseconds(lambda: other.copy_(big))
    bandwidth = 2 * big.nbytes / copy / 1e9
    print(f"copy {bandwidth:.2f} TB/s")
    for name, (width, inputs, gated) in SHAPES.items():
        if asked.only in name:
            for rows in map(int, asked.rows.split(",")):
                compare(name, rows, width, inputs, gated, bandwidth, asked.sweep)


def compare(
    name: str, rows: int, width: int, inputs: int, gated: bool, bandwidth: float, sweep: bool
) -> None:
    outputs = width * (2 if gated else 1)
    count = max(2, min(40, int(BYTES / (2 * outputs * inputs))))
    matrices = [
        torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) * inputs**-0.5
        for _ in range(count)
    ]
    x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
    gain = torch.ones(inputs, device="cuda", dtype=torch.bfloat16)
    limit = 2e3 * outputs * inputs / bandwidth / 1e9

    def library(normed: Tensor, matrix: Tensor) -> Tensor:
        y = normed @ matrix.T
        return elementwise.swiglu(y) if gated else y

    def ours(tiling: Tiling | None) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda normed, matrix: few_rows.product(
            normed, matrix, None, None, gated=gated, tiling=tiling
        )

    def chain(made: Callable[[Tensor, Tensor], Tensor], chained: bool) -> float:
        def work() -> None:
            with dependent_launch.chained(x.device) if chained else nullcontext():
                for matrix in matrices:
                    made(elementwise.rms_norm(x, gain, 1e-6)[0], matrix)

        return 1e3 * captured(work) / count

    wide = x.double() @ matrices[0].double().T
    expected = wide
    if gated:
        one, two = wide.chunk(2, dim=1)
        expected = one * torch.sigmoid(one) * two
    found = few_rows.product(x, matrices[0], None, None, gated=gated)
    error = float((found - expected).norm() / expected.norm())
    base = chain(library, False)
    print(
        f"{name} x{rows}: limit {limit:.1f} us, library {base:.1f}, error {error:.1e}", flush=True
    )
    lines = []
    for tiling in TILINGS if sweep else [None]:
        try:
            plain = chain(ours(tiling), False)
            early = chain(ours(tiling), True)
        except Exception as failed:
            lines.append((1e9, f"   {tiling}: {type(failed).__name__}"))
            continue
        lines.append(
            (early, f"   {early:6.1f} ({plain:6.1f} not early)  {tiling and tuple(tiling)}")
        )
    for _, line in sorted(lines)[:6]:
        print(line, flush=True)


def captured(work: Callable[[], None]) -> float:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return milliseconds(graph.replay)


def milliseconds(work: Callable[[], object]) -> float:
    times = []
    for turn in range(12):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        torch.cuda.synchronize()
        if turn > 1:
            times.append(first.elapsed_time(last))
    return statistics.median(times)


if __name__ == "__main__":
    main()
