"""The adapters that can be sampled from, by name. What a name stands for never changes.

Their tensors are kept up to a budget. Beyond it the least recently used are dropped and read again
from their folders when needed. A version in use is never dropped, nor is one that came from a run
in memory and whose folder is still to be written.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from tinkex.engine.adapters import layout as adapters
from tinkex.engine.adapters.layout import AdapterWeights
from tinkex.engine.adapters.stacked import nbytes, stacked_factors
from tinkex.engine.errors import UserError
from tinkex.engine.model.config import ModelConfig, slots
from tinkex.engine.model.slots import Slot
from tinkex.engine.sampling.slot_products import (
    Blocks,
    Key,
    Part,
    Products,
    as_they_lie,
    is_large,
    side_by_side,
)

ExpertFactors: TypeAlias = Mapping[tuple[int, str], adapters.Factors]
"""By (layer, slot), of that layer alone, B scaled."""

GPU_RANKS = 16
"""Ranks are padded with zeros to a multiple of this on a GPU, which reads in such pieces."""


@dataclass(slots=True, eq=False)
class Version:
    """One adapter, or with no folder the base model. In steady mode all its factors are in
    `stacked`, as training has them."""

    id: int  # unique for the store's lifetime
    folder: str | None  # its files; None for the base model
    products: Products | None = None  # for slots without experts; None while not loaded
    blocks: dict[Key, Blocks] = field(default_factory=dict)  # for the same slots
    nbytes: int = 0  # size of its tensors; 0 while not loaded
    users: int = 0  # requests under way
    loads: int = 0  # how often its tensors were read: part of `identity`
    rank: int = 0  # the largest rank of any module
    experts: ExpertFactors = field(default_factory=dict)  # for slots with experts
    as_it_lies: bool = False  # whether its products use every module as it is in the file
    stacked: Mapping[str, adapters.Factors] = field(default_factory=dict)  # for steady mode
    scaling: float = 1.0  # scaling of what is stacked

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
        """Stop serving `name`. Requests under way keep it until they end."""
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
        version.as_it_lies = self._stays_as_it_lies(weights)
        if version.as_it_lies:
            version.products, version.blocks = as_they_lie(weights, self._slots)
        else:
            place = (self._device, self._dtype, self._step)
            version.products, version.blocks = side_by_side(weights, self._slots, *place)
        version.experts = self._experts(weights)
        if self._device.type == "cuda":
            for key, factors in version.experts.items():
                shared, version.blocks[key] = _shared_factor(factors)
                version.products[key] = (shared,)
        version.loads += 1
        ranks = (rank for blocks in version.blocks.values() for _, rank in blocks)
        version.rank = max(ranks, default=0)
        version.nbytes = sum(part.nbytes for parts in version.products.values() for part in parts)
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

    def _stays_as_it_lies(self, weights: AdapterWeights) -> bool:
        plain = self._device.type == "cpu" and self._dtype == torch.float32
        return plain and is_large(weights)

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


def _shared_factor(factors: adapters.Factors) -> tuple[Part, Blocks]:
    """The factor that all experts share, as that of a slot without experts; beside it nothing."""
    rank, nothing = factors.b[0].shape[-1], factors.a.new_empty(0, 0)
    blocks = tuple((index * rank, rank) for index in range(len(factors.b)))
    if factors.a.ndim == 4:
        return Part(nothing, factors.b[0][0].T.contiguous()), blocks
    return Part(factors.a[0].T.contiguous(), nothing), blocks


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
