"""An adapter as it is taken in for sampling: modules side by side, bit for bit as in its file, or
as they lie in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tinkex.engine.adapters.layout import AdapterWeights
from tinkex.engine.model.config import ModelConfig, slots
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.products import FrozenProducts
from tinkex.engine.sampling import slot_products
from tinkex.engine.sampling.adapters import Version, VersionStore
from tinkex.engine.sampling.projection import Projection, Span, Stacks

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
            (part,) = version.products[layer, slot]
            a, b = part.a, part.b
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


def test_a_large_adapter_is_used_as_it_lies_on_a_cpu_and_not_copied(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_products, "LARGE_BYTES", 0)
    weights = _adapter(decoder.config)
    store = VersionStore(decoder.config, CPU, torch.float32, 1 << 30, lambda _: weights)
    store.add("name", "folder")
    version = store.acquire("name")
    assert version.products is not None
    taken = {
        tensor.data_ptr()
        for parts in version.products.values()
        for part in parts
        for tensor in (part.a, part.b)
    }
    assert taken == {factor.data_ptr() for pair in weights.factors.values() for factor in pair}
    assert version.nbytes == sum(a.nbytes + b.nbytes for a, b in weights.factors.values())


@pytest.mark.parametrize("company", [0, 5])
def test_a_large_adapters_product_is_that_of_its_modules_side_by_side(
    decoder: Decoder, company: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = _adapter(decoder.config)
    versions = []
    for least in (0, 1 << 40):
        monkeypatch.setattr(slot_products, "LARGE_BYTES", least)
        store = VersionStore(decoder.config, CPU, torch.float32, 1 << 30, lambda _: weights)
        store.add("name", "folder")
        versions.append(store.acquire("name"))
    assert [version.as_it_lies for version in versions] == [True, False]
    found, wanted = (_projected(decoder, version, company) for version in versions)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    if company:
        alone = _projected(decoder, versions[0], 0)
        assert all(torch.equal(one, other) for one, other in zip(alone, found, strict=True))


def _projected(decoder: Decoder, version: Version, company: int) -> list[torch.Tensor]:
    """Three rows' products with every matrix of the first layer, beside five other rows, so many of
    them with versions of their own."""
    others = [Span(3 + i, 4 + i, _other(version, i)) for i in range(company)]
    projection = Projection(
        FrozenProducts(decoder.weights), [Span(0, 3, version), *others], Stacks(), CPU
    )
    draw, found = torch.Generator().manual_seed(1), []
    for (layer, slot), weight, bias in decoder.weights.products():
        if layer == 0:
            x = torch.randn(3, weight.shape[1], generator=draw)
            rows = torch.cat([x, torch.ones(5, weight.shape[1])])
            found.append(projection.project(layer, slot, rows, weight, bias)[:3])
    return found


def _other(version: Version, number: int) -> Version:
    return replace(version, id=version.id + 1 + number)
