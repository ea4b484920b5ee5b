"""The adapters that can be sampled from, by name. What a name stands for never changes.

Their tensors are kept up to a budget; beyond it those not in use for longest are let go and read
again from their folders when asked for. A version in use is never let go, nor is one that came from
a run in memory and whose folder is still to be written.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.adapters import layout as adapters
from tinkex.engine.adapters.layout import AdapterWeights
from tinkex.engine.adapters.stacked import nbytes, stacked_factors
from tinkex.engine.errors import UserError
from tinkex.engine.model.config import ModelConfig, slots
from tinkex.engine.model.slots import Slot

Factors: TypeAlias = tuple[Tensor, Tensor]
"""A.T [in, r] and scaled B.T [r, out], the modules of a slot side by side."""

Products: TypeAlias = dict[tuple[int, str], Factors]
"""By (layer, slot)."""

Blocks: TypeAlias = dict[tuple[int, str], tuple[tuple[int, int], ...]]
"""By (layer, slot), for each of the slot's modules: the first of its ranks and their number."""

ExpertFactors: TypeAlias = Mapping[tuple[int, str], adapters.Factors]
"""By (layer, slot), of that layer alone, B scaled."""

GPU_RANKS = 16
"""Ranks are padded with zeros to a multiple of this on a GPU, which reads in such pieces."""


@dataclass(slots=True, eq=False)
class Version:
    """One adapter, or with no folder the base model. In steady mode all its factors are in
    `stacked`, as training has them."""

    id: int  # unique for the store's lifetime
    folder: str | None  # its files; None: the base model
    products: Products | None = None  # of slots without experts; None while tensors are let go
    blocks: Blocks = field(default_factory=dict)  # of the same slots
    nbytes: int = 0  # of its tensors; 0 while they are let go
    users: int = 0  # requests under way
    loads: int = 0  # how often its tensors were read: `identity` stands for the very tensors
    rank: int = 0  # the largest of any module
    experts: ExpertFactors = field(default_factory=dict)  # of slots with experts
    stacked: Mapping[str, adapters.Factors] = field(default_factory=dict)  # in steady mode
    scaling: float = 1.0  # of what is stacked

    @property
    def identity(self) -> tuple[int, int]:
        return self.id, self.loads


class VersionStore:
    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        dtype: torch.dtype,
        budget_bytes: int,
        read: Callable[[str], AdapterWeights],
        *,
        steady: bool = False,
    ) -> None:
        self._slots = slots(config)
        self._device, self._dtype = device, dtype
        self._step = GPU_RANKS if device.type == "cuda" else 1
        self._budget, self._steady = budget_bytes, steady
        self._read = read
        self._next_id = 1
        self._versions: OrderedDict[str, Version] = OrderedDict({"": Version(0, None, {})})

    def __len__(self) -> int:
        return len(self._versions) - 1

    @property
    def nbytes(self) -> int:
        return sum(version.nbytes for version in self._versions.values())

    def add(self, name: str, folder: str) -> None:
        """Serve the adapter in `folder` under `name`; a name already served stays as it is."""
        if name not in self._versions:
            self._take_in(name, folder, self._read(folder))

    def serve(self, name: str, folder: str, weights: AdapterWeights) -> None:
        """Serve these weights under `name`; their files will be in `folder` later."""
        if name not in self._versions:
            self._take_in(name, folder, weights)

    def _take_in(self, name: str, folder: str, weights: AdapterWeights) -> None:
        version = Version(self._next_id, folder)
        self._fill(version, weights)
        self._next_id += 1
        self._versions[name] = version
        self._let_go()

    def drop(self, name: str) -> None:
        """Serve `name` no more. Requests under way keep it until they end."""
        if name == "":
            raise UserError('weights: the base model "" cannot be dropped')
        self._versions.pop(name, None)

    def acquire(self, name: str) -> Version:
        """The version under `name`, in use until `release`."""
        version = self._versions.get(name)
        if version is None:
            raise UserError(f"weights: {name!r} is not loaded; send LoadWeights first")
        if version.products is None:
            assert version.folder is not None
            self._fill(version, self._read(version.folder))
        version.users += 1
        self._versions.move_to_end(name)
        self._let_go()
        return version

    def release(self, version: Version) -> None:
        version.users -= 1
        self._let_go()

    def _let_go(self) -> None:
        total = self.nbytes
        for version in self._versions.values():
            if total <= self._budget:
                return
            if not version.users and version.folder is not None and Path(version.folder).is_dir():
                total -= version.nbytes
                version.products, version.experts, version.nbytes = None, {}, 0
                version.stacked = {}

    def _fill(self, version: Version, weights: AdapterWeights) -> None:
        self._check_fit(weights)
        if self._steady:
            self._fill_stacked(version, weights)
            return
        version.products, version.blocks = self._products(weights)
        version.experts = self._experts(weights)
        if self._device.type == "cuda":
            for key, factors in version.experts.items():
                version.products[key], version.blocks[key] = _shared_factor(factors)
        version.loads += 1
        ranks = (rank for blocks in version.blocks.values() for _, rank in blocks)
        version.rank = max(ranks, default=0)
        version.nbytes = sum(a.nbytes + b.nbytes for a, b in version.products.values())
        version.nbytes += sum(
            factors.a.nbytes + sum(b.nbytes for b in factors.b)
            for factors in version.experts.values()
        )

    def _fill_stacked(self, version: Version, weights: AdapterWeights) -> None:
        version.products, version.loads = {}, version.loads + 1
        version.stacked = stacked_factors(weights, self._slots, self._device, self._dtype)
        version.rank, version.scaling = weights.rank, weights.scaling
        version.nbytes = nbytes(version.stacked)

    def _experts(self, weights: AdapterWeights) -> ExpertFactors:
        found = {}
        for name, placed in self._slots.items():
            for layer in placed.layers if placed.slot.of_experts else ():
                pairs = [weights.factors.get((layer, module)) for module, _ in placed.slot.modules]
                if any(pair is not None for pair in pairs):
                    a, b = _expert_factors(
                        placed.slot, pairs, weights.rank, weights.scaling, self._step
                    )
                    place = (self._device, self._dtype)
                    found[layer, name] = adapters.Factors(
                        a.to(*place)[None], tuple(one.to(*place)[None] for one in b), {layer: 0}
                    )
        return found

    def _products(self, weights: AdapterWeights) -> tuple[Products, Blocks]:
        found, blocks, step = {}, {}, self._step
        for name, placed in self._slots.items():
            alike: dict[tuple[tuple[int, int], ...], list[int]] = {}
            for layer in () if placed.slot.of_experts else placed.layers:
                alike.setdefault(_slot_blocks(weights, layer, placed.slot, step), []).append(layer)
            for ranks, layers in alike.items():
                if any(rank for _, rank in ranks):
                    made = _slot_products(weights, layers, placed.slot, ranks, self._dtype)
                    a, b = (part.to(self._device) for part in made)
                    for depth, layer in enumerate(layers):
                        found[layer, name], blocks[layer, name] = (a[depth], b[depth]), ranks
        return found, blocks

    def _check_fit(self, weights: AdapterWeights) -> None:
        shapes = {
            (layer, module): placed.slot.factor_shapes(out, weights.rank)
            for placed in self._slots.values()
            for module, out in placed.slot.modules
            for layer in placed.layers
        }
        for (layer, module), pair in weights.factors.items():
            if shapes.get((layer, module)) != tuple(tuple(factor.shape) for factor in pair):
                raise UserError(
                    f"adapter: {module} of layer {layer}, from {pair[0].shape[-1]} to "
                    f"{pair[1].shape[-2]}, does not fit this model"
                )


def _shared_factor(factors: adapters.Factors) -> tuple[Factors, tuple[tuple[int, int], ...]]:
    """The factor that all experts share, as that of a slot without experts; beside it nothing."""
    rank, nothing = factors.b[0].shape[-1], factors.a.new_empty(0, 0)
    blocks = tuple((index * rank, rank) for index in range(len(factors.b)))
    if factors.a.ndim == 4:
        return (nothing, factors.b[0][0].T.contiguous()), blocks
    return (factors.a[0].T.contiguous(), nothing), blocks


def _expert_factors(
    slot: Slot, pairs: Sequence[tuple[Tensor, Tensor] | None], rank: int, scaling: float, step: int
) -> tuple[Tensor, list[Tensor]]:
    """A of all modules, one below the other, and each B, scaled; of a missing module zeros. Ranks
    are filled up to a multiple of `step`."""
    device = next(pair[0].device for pair in pairs if pair is not None)
    found = [
        pair or tuple(torch.zeros(s, device=device) for s in slot.factor_shapes(out, rank))
        for pair, (_, out) in zip(pairs, slot.modules, strict=True)
    ]
    short = -rank % step
    a = torch.cat([F.pad(pair[0], (0, 0, 0, short)) for pair in found], dim=-2)
    b = [F.pad(pair[1] * scaling, (0, short)) for pair in found]
    return (a if slot.experts_a else a[0]), [one if slot.experts_b else one[0] for one in b]


def _slot_blocks(
    weights: AdapterWeights, layer: int, slot: Slot, step: int
) -> tuple[tuple[int, int], ...]:
    """Offset and rank of each of the slot's modules, ranks rounded up to a multiple of `step`."""
    blocks, offset = [], 0
    for module, _ in slot.modules:
        factors = weights.factors.get((layer, module))
        rank = 0 if factors is None else -(-factors[0].shape[0] // step) * step
        blocks.append((offset, rank))
        offset += rank
    return tuple(blocks)


def _slot_products(
    weights: AdapterWeights, layers: Sequence[int], slot: Slot, blocks: Sequence[tuple[int, int]],
    dtype: torch.dtype,
) -> Factors:  # fmt: skip
    """The slot's modules as one product for each layer: A's side by side, B's on the diagonal. On a
    GPU all layers in a few operations: each small one costs more to launch than to run. On a CPU
    one by one, straight to their places: what it takes is memory, and each pass over it counts."""
    ranks, widths = sum(rank for _, rank in blocks), [width for _, width in slot.modules]
    device = next(iter(weights.factors.values()))[0].device
    a = _blank((len(layers), slot.in_features, ranks), device, dtype)
    b = _blank((len(layers), ranks, sum(widths)), device, dtype)
    for index, ((module, width), (row, rank)) in enumerate(zip(slot.modules, blocks, strict=True)):
        if rank:
            pairs = [weights.factors[layer, module] for layer in layers]
            rows = slice(row, row + pairs[0][0].shape[0])
            column = sum(widths[:index])
            to_a, to_b = a[:, :, rows], b[:, rows, column : column + width]
            if device.type == "cpu":
                for depth, (down, up) in enumerate(pairs):
                    to_a[depth].copy_(down.mT)
                    torch.mul(up.mT, weights.scaling, out=to_b[depth])
            else:
                downs, ups = (torch.stack(factors) for factors in zip(*pairs, strict=True))
                to_a.copy_(downs.mT)
                to_b.copy_(ups.mul_(weights.scaling).mT)
    return a, b


def _blank(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros. On a CPU such as the system hands out, where torch would write its own over them."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    return (
        torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8))
        .view(dtype)
        .view(shape)
    )
