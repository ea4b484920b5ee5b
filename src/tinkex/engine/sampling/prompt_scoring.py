"""Computes the logits that a step's prompts need for the logprobs they were asked for."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tinkex.engine.sampling.draw import Drawer
from tinkex.engine.sampling.forward import Forward
from tinkex.engine.sampling.scheduling.chunks import Chunk


def score_prompts(
    chunks: Sequence[Chunk], hidden: Tensor, forward: Forward, drawer: Drawer, block: int
) -> None:
    """From the hidden states of these chunks end to end, making up to `block` rows at once."""
    if all(chunk.branch.started for chunk in chunks):
        return
    first = 0
    for chunk in chunks:
        request, rows = chunk.branch.request, chunk.branch.request.scores.rows
        start, stop = max(chunk.start, rows.start), min(chunk.stop, rows.stop)
        if not chunk.branch.started and start < stop:
            offset = first - chunk.start
            for begin in range(start, stop, block):
                end = min(begin + block, stop)
                part = hidden[offset + begin : offset + end]
                logits = forward.logits(part, [request.version] * (end - begin))
                request.scores.take(begin, logits, drawer)
        first += chunk.stop - chunk.start
