"""How evenly a mixture's experts are used: the `e_*` metrics of a training call.

Balance is a layer's tokens, times experts per token, over experts. Counted by call, so that a
call's metrics do not depend on who else is in its batch.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class ExpertLoads:
    def __init__(self, experts: int) -> None:
        self._experts = experts
        self._routes: dict[int, Tensor] = {}
        self._counts: dict[int, Tensor] = {}

    def note(self, layer: int, experts: Tensor) -> None:
        """Note a layer's choices in the current pass; a recomputed layer repeats the same."""
        self._routes[layer] = experts

    def settle(self, shares: Iterable[tuple[int, tuple[int, int]]]) -> None:
        """End the pass: (call, its tokens [start, stop)) of each call in it."""
        if not self._routes:
            return
        passed = list(self._routes.values())
        self._routes = {}
        chosen = torch.stack(passed)
        for call, (start, stop) in shares:
            own = chosen[:, start:stop].flatten(1)
            counts = own.new_zeros(len(passed), self._experts)
            counts.scatter_add_(1, own, torch.ones_like(own))
            self._counts[call] = counts + self._counts.get(call, 0)

    def metrics(self, call: int) -> dict[str, float]:
        """Metrics of a call by name; none without experts."""
        if call not in self._counts:
            return {}
        counts = self._counts[call].cpu().double()
        balance = counts.mean(1, keepdim=True)
        violation = (counts - balance) / balance
        most, least = violation.amax(1), violation.amin(1)
        return {
            "e_frac_with_tokens:mean": float((counts > 0).double().mean()),
            "e_frac_oversubscribed:mean": float((counts > balance).double().mean()),
            "e_max_violation:mean": float(most.mean()),
            "e_max_violation:max": float(most.max()),
            "e_min_violation:mean": float(least.mean()),
        }
