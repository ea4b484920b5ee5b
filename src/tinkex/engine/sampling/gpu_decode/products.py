"""The matrix products of decode steps, without adapters and with any mix of them.

Products with few rows are kernels of ours that begin while what is in front of them still runs
(`kernels.few_rows`), others a library's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.cuda import Stream

from tinkex.engine.kernels import elementwise, few_rows
from tinkex.engine.kernels import row_adapters as adapter_kernel
from tinkex.engine.kernels.mixtures import pair_adapters as pair_kernel
from tinkex.engine.kernels.mixtures.few_experts import FewRoutes
from tinkex.engine.model.config import slots
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.matrices.frozen import Matrix, linear, linear_onto, linear_wide
from tinkex.engine.model.ops import logits
from tinkex.engine.model.passes import Lora
from tinkex.engine.model.slots import UNEMBED
from tinkex.engine.sampling.gpu_decode.adapter_table import AdapterTable


class BareProducts(Lora):
    """Those of the base model."""

    few = True

    def project(
        self, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> Tensor:
        return _product(slot, x, weight, bias)

    def project_gated(
        self, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> Tensor:
        if few_rows.takes(weight, x):
            return few_rows.product(x, weight, bias, None, gated=True)
        return super().project_gated(layer, slot, x, weight, bias)

    def project_onto(
        self, onto: Tensor, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> Tensor:
        if few_rows.takes(weight, x):
            return few_rows.product(x, weight, bias, onto, dtype=onto.dtype)
        return linear_onto(onto, x, weight, bias)

    def shrink_tokens(self, layer: int, slot: str, x: Tensor) -> None:
        return None

    def shrink_pairs(self, layer: int, slot: str, rows: Tensor, routes: FewRoutes) -> None:
        return None


class AdapterProducts(Lora):
    """Looks up each row's adapter on the device, so that one graph serves any mix of them.

    The small products need nothing of the large ones: they run side by side, on a stream of their
    own, and are summed at the end, where there is one by whoever reads the sum.
    """

    few = True

    def __init__(
        self, table: AdapterTable, decoder: Decoder, segments: Tensor, owners: Tensor, rank: int,
        side: Stream,
    ) -> None:  # fmt: skip
        self._entries, self._rank, self._side = table.entries, rank, side
        self._whole_table, self._owners = table.tensor, owners
        self._segments, rows = segments[:2], segments.shape[1]
        # One lookup less for every kernel: each waits for one before it can read anything.
        self._table = table.tensor.index_select(0, segments[2])
        self._counts = adapter_kernel.counters(rows, decoder.device)
        self._widths = {
            name: tuple(width for _, width in placed.slot.modules)
            for name, placed in slots(decoder.config).items()
        }
        own = [name for name, placed in slots(decoder.config).items() if not placed.slot.of_experts]
        # Rows with no adapter are never written to, so they stay zero from layer to layer.
        self._added = {
            name: torch.zeros(
                rows, sum(self._widths[name]), dtype=decoder.dtype, device=decoder.device
            )
            for name in own
        }

    def project(
        self, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> Tensor:
        y, added = self.project_apart(layer, slot, x, weight, bias)
        return y if added is None else y.add_(added)

    def project_apart(
        self, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        added = self._added.get(slot)
        if added is None:
            return _product(slot, x, weight, bias), None
        with self._beside(added, False, layer, slot, x):
            y = _product(slot, x, weight, bias)
        return y, added

    def project_gated(
        self, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> Tensor:
        gated: Tensor = elementwise.swiglu(*self.project_apart(layer, slot, x, weight, bias))
        return gated

    def project_onto(
        self, onto: Tensor, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> Tensor:
        with self._beside(onto, True, layer, slot, x):
            y = _product(slot, x, weight, bias, onto.dtype)
        return onto.add_(y)

    def shrink_tokens(self, layer: int, slot: str, x: Tensor) -> Tensor:
        widths = self._widths[slot]
        where = (self._entries[layer, slot], self._table, self._segments)
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            return adapter_kernel.shrink(x, len(widths) * self._rank, self._counts, *where)

    def expand_pairs(self, layer: int, slot: str, thin: Tensor, routes: FewRoutes) -> Tensor:
        torch.cuda.current_stream().wait_stream(self._side)
        entry, width = self._entries[layer, slot], self._widths[slot][0]
        where = (entry, self._whole_table, width, self._rank)
        return pair_kernel.expand(thin, routes, self._owners, *where)

    def shrink_pairs(self, layer: int, slot: str, rows: Tensor, routes: FewRoutes) -> Tensor:
        where = (self._entries[layer, slot], self._whole_table, self._rank)
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            return pair_kernel.shrink(rows, routes, self._owners, *where)

    def expand_tokens(self, layer: int, slot: str, thin: Tensor, onto: Tensor) -> None:
        torch.cuda.current_stream().wait_stream(self._side)
        where = (self._entries[layer, slot], self._table, self._segments)
        adapter_kernel.expand(onto, thin, *where, self._widths[slot], self._rank, True)

    @contextmanager
    def _beside(self, into: Tensor, add: bool, layer: int, slot: str, x: Tensor) -> Iterator[None]:
        """Write the small products to `into`, or add them, while what is inside the `with` runs."""
        widths, main = self._widths[slot], torch.cuda.current_stream()
        where = (self._entries[layer, slot], self._table, self._segments)
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            thin = adapter_kernel.shrink(x, len(widths) * self._rank, self._counts, *where)
            adapter_kernel.expand(into, thin, *where, widths, self._rank, add)
        yield
        main.wait_stream(self._side)


def _product(
    slot: str, x: Tensor, weight: Matrix, bias: Tensor | None, dtype: torch.dtype | None = None
) -> Tensor:  # fmt: skip
    """Rounded to the dtype of x if it need not be wider, as logits are."""
    if few_rows.takes(weight, x):
        dtype = torch.float32 if slot == UNEMBED else dtype
        return few_rows.product(x, weight, bias, None, dtype=dtype)
    if slot == UNEMBED:
        return logits(x, weight)
    wide = dtype not in (None, x.dtype)
    return linear_wide(x, weight, bias) if wide else linear(x, weight, bias)
