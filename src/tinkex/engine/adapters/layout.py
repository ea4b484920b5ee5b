"""LoRA adapters: where each factor lies in one flat float32 vector, and their values.

An adapter is one vector. Its factors are views into it, stacked over layers and, where the base
model fuses modules, over modules: x @ a.T serves queries, keys and values at once. Optimizers,
snapshots and clones work on the vector and need not know what is in it.

The product added to a frozen matrix is `scaling · B (A x)` with scaling = 32 / rank, so that a
learning rate found at one rank serves the others.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tinkex.engine.adapters.shares import Sharded, Shares, Whole, cut, longer_axis
from tinkex.engine.errors import UserError
from tinkex.engine.messages import LoraSpec
from tinkex.engine.model.config import ModelConfig, slots
from tinkex.engine.model.slots import PARTS, Part, PlacedSlot, Slot
from tinkex.engine.pieces import Pieces

ALPHA = 32

_DRAWN, _COPIED = 1 << 23, 1 << 24
"""Numbers of a fresh adapter that are drawn, and copied to a device, in one piece. Drawing so many
takes 30 to 45 ms of a core."""


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """A frozen copy of an adapter, module by module: what is exported and what is sampled from.

    `factors[(layer, module)]` is (A [rank, in], B [out, rank]), float32, with the modules named
    by their path within a layer (self_attn.q_proj … mlp.down_proj); the unembedding is
    (-1, "lm_head"). Factors of experts have the expert in front, or 1 on the side where all share
    one. A module that is not there has no product.
    """

    rank: int
    scaling: float
    factors: Mapping[tuple[int, str], tuple[Tensor, Tensor]]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes + b.nbytes for a, b in self.factors.values())


@dataclass(frozen=True, slots=True)
class Factors:
    """One slot's views, stacked over the layers that have it: a [depth, modules · rank, in], each
    b [depth, out, rank]. Of a mixture of experts one of the two has the expert after the depth.
    `place[layer]` is the layer's place in the stack."""

    a: Tensor
    b: tuple[Tensor, ...]
    place: Mapping[int, int]


class AdapterLayout:
    """Where an adapter of this specification keeps its factors in a flat vector."""

    def __init__(self, config: ModelConfig, spec: LoraSpec) -> None:
        if not (spec.train_attn or spec.train_mlp or spec.train_unembed):
            raise UserError(
                "lora: train_attn, train_mlp and train_unembed are all false, so nothing would "
                "train; switch at least one on"
            )
        self.spec = spec
        self.scaling = ALPHA / spec.rank
        wanted = _parts(spec)
        every = slots(config).items()
        self.slots: dict[str, PlacedSlot] = {k: v for k, v in every if v.slot.part in wanted}
        self._places = {
            name: {layer: place for place, layer in enumerate(placed.layers)}
            for name, placed in self.slots.items()
        }
        self.size = sum(math.prod(shape) for _, shape in self.shapes())
        shard = config.shard
        self.whole = self if shard is None else AdapterLayout(shard.whole, spec)
        """The layout of the whole adapter, where a rank has a part of it."""
        self.shares: Shares = Whole() if shard is None else Sharded(self, self.whole, shard)

    def factors(self, flat: Tensor) -> dict[str, Factors]:
        """Views of a vector of `size` elements, by slot; of a stack of them, [count, size], with
        the count in front."""
        views = self.views(flat)
        found, start = {}, 0
        for name, placed in self.slots.items():
            stop = start + 1 + len(placed.slot.modules)
            found[name] = Factors(views[start], tuple(views[start + 1 : stop]), self._places[name])
            start = stop
        return found

    def views(self, flat: Tensor) -> list[Tensor]:
        """The same views in the order of `shapes`."""
        shapes = [shape for _, shape in self.shapes()]
        parts = flat.split_with_sizes([math.prod(shape) for shape in shapes], dim=-1)
        front = flat.shape[:-1]
        return [part.view(*front, *shape) for part, shape in zip(parts, shapes, strict=True)]

    def modules(self, flat: Tensor) -> dict[tuple[int, str], tuple[Tensor, Tensor]]:
        """Views of the same vector by (layer, module), as `AdapterWeights` lists them."""
        found, rank = {}, self.spec.rank
        for name, factors in self.factors(flat).items():
            slot = self.slots[name].slot
            for index, (module, _) in enumerate(slot.modules):
                for layer, depth in factors.place.items():
                    a = factors.a[depth].narrow(-2, index * rank, rank)
                    b = factors.b[index][depth]
                    found[layer, module] = _with_experts(slot, a, b)
        return found

    def matrices(self, flat: Tensor) -> list[Tensor]:
        """Views of the same vector as stacks of matrices [count, rows, columns], one per kind."""
        found, rank = [], self.spec.rank
        for factors in self.factors(flat).values():
            found.append(factors.a.reshape(-1, rank, factors.a.shape[-1]))
            found.extend(b.reshape(-1, *b.shape[-2:]) for b in factors.b)
        return found

    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Of every factor's stack with its slot, in the order in which they lie in a vector."""
        shapes: list[tuple[str, tuple[int, ...]]] = []
        rank = self.spec.rank
        for name, placed in self.slots.items():
            slot, depth = placed.slot, len(placed.layers)
            front_a = (depth, slot.experts_a) if slot.experts_a else (depth,)
            front_b = (depth, slot.experts_b) if slot.experts_b else (depth,)
            shapes.append((name, (*front_a, len(slot.modules) * rank, slot.in_features)))
            shapes.extend((name, (*front_b, out, rank)) for _, out in slot.modules)
        return shapes


def _with_experts(slot: Slot, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """A module's factors; of experts the one they share gets a leading 1."""
    if not slot.of_experts:
        return a, b
    return (a if slot.experts_a else a[None]), (b if slot.experts_b else b[None])


def _parts(spec: LoraSpec) -> set[Part]:
    on = (spec.train_attn, spec.train_mlp, spec.train_unembed)
    return {part for part, wanted in zip(PARTS, on, strict=True) if wanted}


def initial_weights(layout: AdapterLayout, seed: int, device: torch.device) -> Pieces[Tensor]:
    """A fresh adapter: each A uniform within ±1/sqrt(in), each B zero. The same on any device."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    flat = torch.zeros(layout.whole.size, dtype=torch.float32)
    drawn = 0
    for factors in layout.whole.factors(flat).values():
        bound = 1.0 / math.sqrt(factors.a.shape[-1])
        for part in factors.a.view(-1).split(_DRAWN):
            part.uniform_(-bound, bound, generator=generator)
            drawn += len(part)
            if drawn >= _DRAWN:
                drawn = 0
                yield
    own = layout.shares.own(flat)
    if own.device == device:
        return own
    placed = torch.empty_like(own, device=device)
    for there, here in zip(placed.split(_COPIED), own.split(_COPIED), strict=True):
        there.copy_(here)
        yield
    return placed


def seed_of(run: str) -> int:
    """The seed of a run that asked for none: from its name, so that a replay finds it again."""
    return int.from_bytes(hashlib.sha256(run.encode()).digest()[:7], "little")


class Adapter:
    """A run's weights: the float32 master vector, and a working one in the model's dtype whose
    factors the products are made with. In float32 they are one and the same."""

    def __init__(self, layout: AdapterLayout, master: Tensor, dtype: torch.dtype) -> None:
        self.layout = layout
        self.master = master
        self.working = master if dtype == master.dtype else master.to(dtype)
        self.factors = layout.factors(self.working)

    @property
    def nbytes(self) -> int:
        copy = 0 if self.working is self.master else self.working.nbytes
        return self.master.nbytes + copy

    def refresh(self) -> None:
        """Carry a change of the master over to the factors."""
        if self.working is not self.master:
            self.working.copy_(self.master)

    def clone(self) -> Adapter:
        return Adapter(self.layout, self.master.clone(), self.working.dtype)

    def weights(self) -> AdapterWeights:
        """A frozen copy of the master weights, on the same device."""
        modules = self.layout.modules(self.master.clone())
        return AdapterWeights(self.layout.spec.rank, self.layout.scaling, modules)

    def load(self, weights: AdapterWeights) -> None:
        """Replace the weights; those given must have this adapter's rank, scaling and modules."""
        layout, master = self.layout, self.master
        check_fit(layout.whole, weights)
        is_whole = layout.whole is layout
        vector = master if is_whole else torch.empty(layout.whole.size, device=master.device)
        for key, (a, b) in layout.whole.modules(vector).items():
            a.copy_(weights.factors[key][0])
            b.copy_(weights.factors[key][1])
        if not is_whole:
            master.copy_(layout.shares.own(vector))
        self.refresh()


def share_of_weights(weights: AdapterWeights, config: ModelConfig) -> AdapterWeights:
    """The part of an adapter's weights that the model of this configuration has use for."""
    if config.shard is None:
        return weights
    own = _factor_shapes(config, weights.rank)
    whole = _factor_shapes(config.shard.whole, weights.rank)
    factors = {}
    for key, pair in weights.factors.items():
        shapes = zip(pair, own.get(key, ()), whole.get(key, ()), strict=False)
        parts = [cut(t, longer_axis(a, b), config.shard) for t, a, b in shapes]
        # What fits no module is left for those to refuse who know the model's names.
        factors[key] = (parts[0], parts[1]) if parts else pair
    return AdapterWeights(weights.rank, weights.scaling, factors)


def _factor_shapes(
    config: ModelConfig, rank: int
) -> dict[tuple[int, str], tuple[tuple[int, ...], tuple[int, ...]]]:
    return {
        (layer, module): placed.slot.factor_shapes(out, rank)
        for placed in slots(config).values()
        for module, out in placed.slot.modules
        for layer in placed.layers
    }


def check_fit(layout: AdapterLayout, weights: AdapterWeights) -> None:
    if weights.rank != layout.spec.rank or not math.isclose(weights.scaling, layout.scaling):
        raise UserError(
            f"adapter: rank {weights.rank} with scaling {weights.scaling:g} does not fit a run of "
            f"rank {layout.spec.rank} with scaling {layout.scaling:g}"
        )
    wanted = layout.modules(torch.empty(layout.size, device="meta"))
    different = sorted(wanted.keys() ^ weights.factors.keys())
    if different:
        layer, module = different[0]
        raise UserError(f"adapter: module {module} of layer {layer} is in one of the two, not both")
    for key, (a, b) in wanted.items():
        given = tuple(tuple(tensor.shape) for tensor in weights.factors[key])
        if given != (tuple(a.shape), tuple(b.shape)):
            raise UserError(f"adapter: {key[1]} of layer {key[0]} has the shapes {given}")
