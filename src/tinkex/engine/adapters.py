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

from tinkex.engine.errors import UserError
from tinkex.engine.messages import LoraSpec
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.decoder import Slot, slots

ALPHA = 32

ATTENTION = ("qkv_proj", "o_proj")
MLP = ("gate_up_proj", "down_proj")
UNEMBED = ("lm_head",)


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """A frozen copy of an adapter, module by module: what is exported and what is sampled from.

    `factors[(layer, module)]` is (A [rank, in], B [out, rank]), float32, with the modules named
    as in Hugging Face folders (q_proj … down_proj); the unembedding is (-1, "lm_head"). A module
    that is not there has no product.
    """

    rank: int
    scaling: float
    factors: Mapping[tuple[int, str], tuple[Tensor, Tensor]]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes + b.nbytes for a, b in self.factors.values())


@dataclass(frozen=True, slots=True)
class Factors:
    """One slot's views, layers first: a [layers, modules · rank, in], each b [layers, out, rank].

    The unembedding has one layer; index it with 0 or -1.
    """

    a: Tensor
    b: tuple[Tensor, ...]


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
        wanted = (
            (ATTENTION if spec.train_attn else ())
            + (MLP if spec.train_mlp else ())
            + (UNEMBED if spec.train_unembed else ())
        )
        every = slots(config)
        self.slots: dict[str, Slot] = {name: every[name] for name in wanted}
        self._depth = {name: 1 if name == "lm_head" else config.layers for name in wanted}
        self.size = sum(math.prod(shape) for shape in self._shapes())

    def factors(self, flat: Tensor) -> dict[str, Factors]:
        """Views of a vector of `size` elements, by slot; of a stack of them, [count, size], with
        the count in front."""
        shapes = self._shapes()
        parts = flat.split_with_sizes([math.prod(shape) for shape in shapes], dim=-1)
        front = flat.shape[:-1]
        views = [part.view(*front, *shape) for part, shape in zip(parts, shapes, strict=True)]
        found, start = {}, 0
        for name, slot in self.slots.items():
            count = len(slot.modules)
            found[name] = Factors(views[start], tuple(views[start + 1 : start + 1 + count]))
            start += 1 + count
        return found

    def modules(self, flat: Tensor) -> dict[tuple[int, str], tuple[Tensor, Tensor]]:
        """Views of the same vector by (layer, module), as `AdapterWeights` lists them."""
        found, rank = {}, self.spec.rank
        for name, factors in self.factors(flat).items():
            for index, (module, _) in enumerate(self.slots[name].modules):
                for depth in range(self._depth[name]):
                    layer = -1 if name == "lm_head" else depth
                    a = factors.a[depth, index * rank : (index + 1) * rank]
                    found[layer, module] = (a, factors.b[index][depth])
        return found

    def matrices(self, flat: Tensor) -> list[Tensor]:
        """Views of the same vector as stacks of matrices [count, rows, columns], one per kind."""
        found, rank = [], self.spec.rank
        for factors in self.factors(flat).values():
            found.append(factors.a.reshape(-1, rank, factors.a.shape[-1]))
            found.extend(factors.b)
        return found

    def _shapes(self) -> list[tuple[int, int, int]]:
        shapes, rank = [], self.spec.rank
        for name, slot in self.slots.items():
            depth = self._depth[name]
            shapes.append((depth, len(slot.modules) * rank, slot.in_features))
            shapes.extend((depth, out, rank) for _, out in slot.modules)
        return shapes


def initial_weights(layout: AdapterLayout, seed: int, device: torch.device) -> Tensor:
    """A fresh adapter: each A uniform within ±1/sqrt(in), each B zero. The same on any device."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    flat = torch.zeros(layout.size, dtype=torch.float32)
    for factors in layout.factors(flat).values():
        bound = 1.0 / math.sqrt(factors.a.shape[-1])
        factors.a.uniform_(-bound, bound, generator=generator)
    return flat.to(device)


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
        check_fit(self.layout, weights)
        for key, (a, b) in self.layout.modules(self.master).items():
            a.copy_(weights.factors[key][0])
            b.copy_(weights.factors[key][1])
        self.refresh()


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
