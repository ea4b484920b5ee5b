"""An adapter as it is taken in for sampling: modules side by side, bit for bit as in its file."""

from __future__ import annotations

import pytest
import torch

from tinkex.engine.adapters.layout import AdapterWeights
from tinkex.engine.model.config import ModelConfig, slots
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.sampling.adapters import VersionStore

RANK, SCALING, LEFT_OUT = 3, 0.3, "self_attn.k_proj"
CPU = torch.device("cpu")


def _adapter(config: ModelConfig) -> AdapterWeights:
    """Of all modules but one."""
    draw, factors = torch.Generator().manual_seed(7), {}
    for placed in slots(config).values():
        for module, out in placed.slot.modules:
            for layer in placed.layers if module != LEFT_OUT else ():
                shapes = placed.slot.factor_shapes(out, RANK)
                a, b = (torch.randn(shape, generator=draw) for shape in shapes)
                factors[layer, module] = a, b
    return AdapterWeights(RANK, SCALING, factors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_each_module_has_its_factors_and_nothing_of_anothers(
    decoder: Decoder, dtype: torch.dtype
) -> None:
    weights = _adapter(decoder.config)
    before = {key: (a.clone(), b.clone()) for key, (a, b) in weights.factors.items()}
    store = VersionStore(decoder.config, CPU, dtype, 1 << 30, lambda _: weights)
    store.add("name", "folder")
    version = store.acquire("name")
    assert version.products is not None
    for slot, placed in slots(decoder.config).items():
        modules = [m for m, _ in placed.slot.modules if m != LEFT_OUT]
        assert modules
        for layer in placed.layers:
            a, b = version.products[layer, slot]
            assert a.dtype == b.dtype == dtype
            pairs = [before[layer, module] for module in modules]
            assert torch.equal(a, torch.cat([down for down, _ in pairs]).T.to(dtype))
            column = 0
            expected = torch.zeros(b.shape)
            for module, out in placed.slot.modules:
                if module in modules:
                    row = modules.index(module) * RANK
                    up = before[layer, module][1] * SCALING
                    expected[row : row + RANK, column : column + out] = up.T
                column += out
            assert torch.equal(b, expected.to(dtype))
    for key, (a, b) in weights.factors.items():
        assert torch.equal(a, before[key][0]), "who reads an adapter leaves it as it is"
        assert torch.equal(b, before[key][1]), "who reads an adapter leaves it as it is"
