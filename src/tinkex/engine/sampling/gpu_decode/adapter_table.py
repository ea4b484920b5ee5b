"""Where the factors of adapters lie on the device, for kernels that serve any mix of them.

An adapter keeps its place in the table from one step to the next, so a step whose adapters are
known uploads nothing. The table holds addresses, not tensors: whoever uses a place must know that
its version is in use, or the tensors may be gone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tinkex.engine.adapters.grouped import LEAST_RANK
from tinkex.engine.kernels.row_adapters import EXPERT_FIELD, FIELDS
from tinkex.engine.model.config import ModelConfig, slots
from tinkex.engine.sampling.adapters import Version


class AdapterTable:
    def __init__(self, config: ModelConfig, places: int, device: torch.device) -> None:
        placed = slots(config).items()
        keys = [(layer, name) for name, found in placed for layer in found.layers]
        self.entries = {key: index for index, key in enumerate(keys)}
        self.tensor = torch.zeros(
            places, len(self.entries), FIELDS, dtype=torch.int64, device=device
        )
        self._place_of: dict[tuple[int, int], int] = {}
        self.rank = LEAST_RANK

    def places(self, versions: Sequence[Version]) -> list[int]:
        """The place of each version; there are at most as many as places."""
        if any(version.identity not in self._place_of for version in versions):
            self._take_in(versions)
        return [self._place_of[version.identity] for version in versions]

    def _take_in(self, versions: Sequence[Version]) -> None:
        fresh = {v.identity: v for v in versions if v.identity not in self._place_of}
        if len(self._place_of) + len(fresh) > len(self.tensor):
            self._place_of.clear()
            self.rank = LEAST_RANK
            fresh = {version.identity: version for version in versions}
        for identity, version in fresh.items():
            place = self._place_of[identity] = len(self._place_of)
            self.tensor[place].copy_(torch.tensor(self._rows(version), dtype=torch.int64))

    def _rows(self, version: Version) -> list[list[int]]:
        assert version.products is not None
        rows = []
        for key in self.entries:
            blocks = version.blocks.get(key, ())
            row = [0, 0, 0]
            for part in version.products.get(key, ()):
                row = [part.a.data_ptr(), part.b.data_ptr(), part.a.shape[1]]
            for offset, rank in blocks:
                row += [offset, rank]
                self.rank = max(self.rank, 1 << (rank - 1).bit_length()) if rank else self.rank
            row += [0] * (EXPERT_FIELD - len(row)) + _own_of_experts(version, key)
            rows.append(row + [0] * (FIELDS - len(row)))
        return rows


def _own_of_experts(version: Version, key: tuple[int, str]) -> list[int]:
    """Where the factors lie that each expert has of its own: one A, or a B of each module."""
    factors = version.experts.get(key)
    if factors is None:
        return []
    if factors.a.ndim == 4:
        return [factors.a.data_ptr()]
    return [b.data_ptr() for b in factors.b]
