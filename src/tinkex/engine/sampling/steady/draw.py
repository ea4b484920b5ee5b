"""Batch-invariant draws and logprobs: one way to draw a row and to sum it, whatever the batch.

Elsewhere a captured step draws by a kernel and other steps by torch, which also sums rows in an
order that depends on how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tinkex.engine.kernels import draw as draw_kernel
from tinkex.engine.kernels import logprobs as logprobs_kernel
from tinkex.engine.sampling.draw import Drawer, Keys, Rule
from tinkex.engine.to_device import to_device


class SteadyDrawer(Drawer):
    def draw(self, logits: Tensor, rules: Sequence[Rule], keys: Keys) -> Tensor:
        filtered = [row for row, rule in enumerate(rules) if rule.filtered and not rule.greedy]
        found = self._raced(logits, rules, keys)
        for row in filtered:
            alone = super().draw(
                logits[row : row + 1], [rules[row]], np.asarray(keys)[row : row + 1]
            )
            found[row : row + 1] = alone
        return found

    def totals(self, logits: Tensor) -> Tensor:
        return logprobs_kernel.logsumexp(logits.contiguous())

    def scored(self, logits: Tensor) -> Tensor:
        return logits - self.totals(logits)[:, None]

    def _raced(self, logits: Tensor, rules: Sequence[Rule], keys: Keys) -> Tensor:
        """By the kernel of captured steps, with no regard to filters."""
        heat = np.array([0.0 if rule.greedy else rule.temperature for rule in rules], np.float32)
        pairs = np.ascontiguousarray(np.asarray(keys, np.int32).reshape(-1, 2).T)
        own, warmth = (to_device(part, logits.device) for part in (pairs, heat.view(np.int32)))
        none = torch.zeros(len(logits), dtype=torch.int32, device=logits.device)
        dense = logits.contiguous()
        drawn = draw_kernel.draw(dense, self.ids, own, warmth, none, none[:, None])
        return drawn[0].long()


def logprobs_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Of each row's token."""
    own = logits.gather(1, tokens.long()[:, None])[:, 0]
    return own - logprobs_kernel.logsumexp(logits)
