"""Causal attention over packed sequences: each token sees the earlier ones of its own sequence.

On a GPU one variable-length kernel computes the whole pack, and cuDNN a long sequence. Elsewhere,
and for dtypes that this kernel does not support, sequences of equal length go as one rectangle
through torch's attention.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tinkex.engine.model.attention_sinks import attend_with_sinks, sink_queries
from tinkex.engine.to_device import to_device
from tinkex.engine.training import causal_rectangles
from tinkex.engine.training.packing import rectangles

logger = logging.getLogger(__name__)

LONG = 16384
"""Tokens from which attention takes most of a sequence's pass. A sequence alone then goes to cuDNN:
nearly twice as fast, but it plans every length anew, which would slow down shorter ones."""


class PackedAttention:
    """An `Attend` for concatenated sequences of these lengths; `whole` lets cuDNN take a long
    one."""

    def __init__(
        self, lengths: Sequence[int], windows: Sequence[int | None], device: torch.device,
        *, whole: bool = True,
    ) -> None:  # fmt: skip
        self._windows = windows
        self._rectangles = rectangles(lengths)
        self._order: tuple[Tensor, Tensor] | None = None
        if len(self._rectangles) > len(set(lengths)):
            self._rectangles = rectangles(sorted(lengths))
            self._order = _sorted_rows(lengths, device)
        self.refused = ""
        """Why cuDNN refused what it was given, if it did."""
        self._longest = max(lengths)
        self._alone = whole and len(lengths) == 1 and lengths[0] >= LONG
        self._bounds = to_device(np.array([0, *accumulate(lengths)], dtype=np.int32), device)

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        window = self._windows[layer]
        if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16):
            if sinks is None:
                if self._alone and window is None and _takes_whole(q, k, v):
                    return self._whole_or_varlen(q, k, v)
                return self._varlen(q, k, v, window)
            apply: Any = _VarlenWithSinks.apply
            result: Tensor = apply(q, k, v, sinks, self._bounds, self._longest, window)
            return result
        return self._by_rectangle(q if sinks is None else sink_queries(q, sinks), k, v, window)

    def _whole_or_varlen(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention by cuDNN; if that fails at this length, the other kernel from here on."""
        try:
            return _whole(q, k, v)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            logger.warning("cuDNN attention failed, the usual kernel goes on: %s", error)
            self._alone, self.refused = False, str(error)
            return self._varlen(q, k, v, None)

    def _varlen(self, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        # What torch's `varlen_attn` calls; on the way there it keeps the host busy for longer than
        # a small pack keeps the GPU.
        out: Tensor = _flash(q, k, v, self._bounds, self._longest, window)[0]
        return out

    def _by_rectangle(self, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        if self._order is not None:
            there, back = self._order
            q, k, v = (_permute(x, there, back) for x in (q, k, v))
        out = self._mixed(q, k, v, window)
        return out if self._order is None else _permute(out, back, there)

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
        """Of sequences in the order of the rectangles."""
        unwindowed = window is None or window >= self._longest
        if q.is_cpu and unwindowed and q.shape[-1] == k.shape[-1]:
            return causal_rectangles.attend(q, k, v, self._rectangles)
        sizes = [count * length for count, length in self._rectangles]
        parts = zip(
            q.split_with_sizes(sizes),
            k.split_with_sizes(sizes),
            v.split_with_sizes(sizes),
            self._rectangles,
            strict=True,
        )
        mixed = [_rectangle(qs, ks, vs, *shape, window) for qs, ks, vs, shape in parts]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _flash(
    q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int, window: int | None
) -> tuple[Tensor, ...]:
    """What is mixed, the logarithms of the sums of weights, and the state of a generator."""
    reach = -1 if window is None else window - 1
    found: tuple[Tensor, ...] = torch.ops.aten._flash_attention_forward(
        q, k, v, bounds, bounds, longest, longest, 0.0, window is None, False,
        window_size_left=reach, window_size_right=0,
    )  # fmt: skip
    return found


def _takes_whole(q: Tensor, k: Tensor, v: Tensor) -> bool:
    asked: Any = torch.backends.cuda.SDPAParams
    heads = [x.transpose(0, 1)[None] for x in (q, k, v)]
    return torch.backends.cuda.can_use_cudnn_attention(asked(*heads, None, 0.0, True, True))


def _whole(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One sequence, by cuDNN."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out[0].transpose(0, 1)


class _VarlenWithSinks(torch.autograd.Function):
    """A sink is one more weight in a row's sum, and nothing in what is mixed. With that sum and
    what was mixed put right, the kernel's own backward pass is right too."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, bounds: Tensor, longest: int,
        window: int | None,
    ) -> Tensor:  # fmt: skip
        mixed, sums, *state = _flash(q, k, v, bounds, longest, window)
        out, sums = with_sinks(mixed, sums, sinks)
        ctx.save_for_backward(q, k, v, out, sums, bounds, *state[:2])
        ctx.facts = (longest, window)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, sums, bounds, *state = ctx.saved_tensors
        longest, window = ctx.facts
        found = torch.ops.aten._flash_attention_backward(
            grads[0].contiguous(), q, k, v, out, sums, bounds, bounds, longest, longest, 0.0,
            window is None, *state, window_size_left=-1 if window is None else window - 1,
            window_size_right=0,
        )  # fmt: skip
        return (*found, None, None, None, None)


def with_sinks(mixed: Tensor, sums: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """[N, heads, D] and logarithms of sums [heads, N] of attention without sinks [heads], with."""
    share = torch.sigmoid(sums - sinks[:, None])
    wider = torch.logaddexp(sums, sinks[:, None].expand_as(sums))
    return (mixed * share.T[:, :, None]).to(mixed.dtype), wider


def _sorted_rows(lengths: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token rows with their sequences sorted by length, and the way back."""
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    order = np.argsort(np.asarray(lengths), kind="stable")
    rows = np.concatenate([np.arange(starts[i], starts[i] + lengths[i]) for i in order])
    return to_device(rows, device), to_device(np.argsort(rows), device)


def _permute(x: Tensor, there: Tensor, back: Tensor) -> Tensor:
    """x[there]; `back` undoes it, which makes the gradient a plain gather too."""
    result: Tensor = _Permute.apply(x, there, back)  # type: ignore[no-untyped-call]  # torch's `apply` is untyped
    return result


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return grads[0].index_select(0, back), None, None


def _rectangle(
    q: Tensor, k: Tensor, v: Tensor, count: int, length: int, window: int | None
) -> Tensor:
    """`count` sequences of one length, [count · length, heads, D] in and out."""
    if q.shape[-1] != k.shape[-1]:
        return _rectangle_with_sinks(q, k, v, count, length, window)
    mask = None
    if window is not None and window < length:
        mask = sliding_mask(length, window, q.device)
    out = F.scaled_dot_product_attention(
        _heads_first(q, count, length),
        _heads_first(k, count, length),
        _heads_first(v, count, length),
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out.transpose(1, 2).reshape(q.shape)


def _rectangle_with_sinks(
    q: Tensor, k: Tensor, v: Tensor, count: int, length: int, window: int | None
) -> Tensor:
    mask = sliding_mask(length, length if window is None else window, q.device)
    keys, values = (_heads_first(x, count, length) for x in (k, v))
    grouped, size = q.shape[1] != k.shape[1], k.shape[-1]
    out = attend_with_sinks(_heads_first(q, count, length), keys, values, mask, size, grouped)
    return out.transpose(1, 2).reshape(len(q), q.shape[1], size)


def _heads_first(x: Tensor, count: int, length: int) -> Tensor:
    return x.view(count, length, x.shape[1], x.shape[2]).transpose(1, 2)


def sliding_mask(length: int, window: int, device: torch.device) -> Tensor:
    """[length, length], true where a query (row) sees a key: itself and window - 1 before it."""
    places = torch.arange(length, device=device)
    distance = places[:, None] - places[None, :]
    return (distance >= 0) & (distance < window)
