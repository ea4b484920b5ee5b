"""A matrix instruction as a card makes it, for kernels under Triton's interpreter.

The interpreter leaves `tl.dot` to numpy, whose sums depend on a tile's shape and on where in it an
element lies. Of a card the kernels in `engine/kernels/steady` assume that neither is so: an element
is summed over its inputs in order. This is that, and nothing more. Numbers become bfloat16 by
rounding to the nearest, as on a card; the interpreter cuts them off.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

STEP = 16
"""Inputs of one instruction."""


@pytest.fixture(autouse=True)
def ordered_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import interpreter

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
        left, right, total = _wide(a), _wide(b), d.data.copy()
        for at in range(0, left.shape[1], STEP):
            # Summed along the middle, numpy adds one plane after the other.
            total += (left[:, at : at + STEP, None] * right[None, at : at + STEP]).sum(1)
        return interpreter.TensorHandle(total, d.dtype.scalar)

    converted = interpreter._convert_float

    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if (source.name, target.name) != ("fp32", "bf16"):
            return converted(data, source, target, rounding)
        bits = np.ascontiguousarray(data, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
    monkeypatch.setattr(interpreter, "_convert_float", convert)


def _wide(x: Any) -> Any:
    """As float32; bfloat16 are kept as their 16 bits."""
    if x.data.dtype == np.uint16:
        return (x.data.astype(np.uint32) << 16).view(np.float32)
    return x.data.astype(np.float32)
