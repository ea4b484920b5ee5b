"""An adapter is one vector whose views are its factors, and its copies are its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tinkex.engine.adapters.layout import Adapter, AdapterLayout, initial_weights
from tinkex.engine.adapters.peft_files import read_adapter, write_adapter
from tinkex.engine.errors import UserError
from tinkex.engine.messages import LoraSpec
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.pieces import at_once

CPU = torch.device("cpu")


@pytest.fixture
def adapter(decoder: Decoder) -> Adapter:
    layout = AdapterLayout(decoder.config, LoraSpec(4))
    return Adapter(layout, at_once(initial_weights(layout, 3, CPU)), torch.float32)


def test_the_views_tile_the_vector(adapter: Adapter) -> None:
    layout = adapter.layout
    numbers = torch.arange(layout.size, dtype=torch.float32)
    pairs = layout.modules(numbers).values()
    seen = torch.cat([factor.flatten() for pair in pairs for factor in pair])
    assert torch.equal(seen.sort().values, numbers)
    stacked = torch.cat([stack.flatten() for stack in layout.matrices(numbers)])
    assert torch.equal(stacked.sort().values, numbers)


def test_a_fresh_adapter_has_a_spread_a_and_a_zero_b(adapter: Adapter) -> None:
    for a, b in adapter.layout.modules(adapter.master).values():
        assert 0 < float(a.abs().max()) <= a.shape[1] ** -0.5
        assert not b.any()


def test_clones_and_frozen_copies_do_not_follow_the_original(adapter: Adapter) -> None:
    twin, frozen = adapter.clone(), adapter.weights()
    first = adapter.master.clone()
    adapter.master.add_(1.0)
    assert torch.equal(twin.master, first)
    twin.master.zero_()
    twin.load(frozen)
    assert torch.equal(twin.master, first)
    assert frozen.nbytes == first.nbytes == twin.nbytes


def test_a_working_copy_in_another_dtype_follows_on_refresh(decoder: Decoder) -> None:
    layout = AdapterLayout(decoder.config, LoraSpec(4))
    adapter = Adapter(layout, at_once(initial_weights(layout, 3, CPU)), torch.bfloat16)
    adapter.master.fill_(2.0)
    assert not (adapter.factors["o_proj"].a == 2.0).any()
    adapter.refresh()
    assert (adapter.factors["o_proj"].a == 2.0).all()
    assert adapter.nbytes == adapter.master.nbytes * 3 // 2


def test_weights_that_do_not_fit_are_refused(adapter: Adapter, decoder: Decoder) -> None:
    frozen = adapter.weights()
    part = {key: value for key, value in frozen.factors.items() if key[1] != "lm_head"}
    with pytest.raises(UserError, match="lm_head of layer -1"):
        adapter.load(replace(frozen, factors=part))
    with pytest.raises(UserError, match="rank 4 with scaling 1 does not fit"):
        adapter.load(replace(frozen, scaling=1.0))


def test_an_archive_of_the_hosted_service_is_read(adapter: Adapter, tmp_path: Path) -> None:
    """It calls the unembedding `unembed_tokens`."""
    weights = adapter.weights()
    write_adapter(weights, tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    tensors = {
        name.replace("lm_head", "model.unembed_tokens"): tensor
        for name, tensor in load_file(file).items()
    }
    assert any("unembed_tokens" in name for name in tensors)
    save_file(tensors, file)
    read = read_adapter(tmp_path).factors
    assert read.keys() == weights.factors.keys()
    for key, pair in weights.factors.items():
        assert all(torch.equal(one, other) for one, other in zip(pair, read[key], strict=True))
