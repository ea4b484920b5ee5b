"""Tries what attention over long sequences depends on, before a user's call does.

Whether cuDNN's attention, and recomputation that keeps attention's results, work depends on the
versions of torch, cuDNN and the driver, and shows only when they run. They run once on random heads
of the model's shape, forwards and backwards, when an engine is first idle or gets a long sequence.
What fails is not used, and the log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tinkex.engine.model.decoder import Decoder, attention_kept
from tinkex.engine.training.attention import LONG, PackedAttention

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LongAttention:
    """What works here: cuDNN's attention for a whole sequence, and keeping what attention gave."""

    whole: bool = True
    kept: bool = True


def tried(decoder: Decoder, length: int = LONG) -> LongAttention:
    """What works, as a sequence of so many tokens shows it."""
    whole = _works("cuDNN attention", lambda: _passes(decoder, length, whole=True, kept=False))
    kept = _works(
        "keeping attention in recomputation",
        lambda: _passes(decoder, length, whole=whole, kept=True),
    )
    if decoder.device.type == "cuda":
        torch.cuda.empty_cache()  # what others are to have was planned before this
    return LongAttention(whole, kept)


def _works(what: str, work: Callable[[], None]) -> bool:
    try:
        work()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        logger.warning("%s does not work here and is left out: %s", what, reason)
        return False
    return True


def _passes(decoder: Decoder, length: int, *, whole: bool, kept: bool) -> None:
    """One attention, forwards and backwards; the device has done it when this returns."""
    shape, device = decoder.config.attention, decoder.device
    attend = PackedAttention([length], [None], device, whole=whole)
    heads = [
        torch.randn(length, count, shape.head_dim, dtype=decoder.dtype, device=device)
        for count in (shape.heads, shape.kv_heads, shape.kv_heads)
    ]
    given = [x.requires_grad_() for x in heads]

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(0, q, k, v)

    with torch.enable_grad():
        if kept:
            out = checkpoint(attention, *given, use_reentrant=False, context_fn=attention_kept)
        else:
            out = attention(*given)
        found = torch.autograd.grad(out, given, out.detach())
    if attend.refused:
        raise RuntimeError(attend.refused)
    if not all(bool(x.isfinite().all()) for x in (out.detach(), *found)):
        raise FloatingPointError("its numbers are not finite")
