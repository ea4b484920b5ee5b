"""Communication between the ranks of one engine: sums over all, all shares, the leader's choice.

A rank is a process with a share of the model on a device of its own. Every rank makes the same
calls in the same order, and gets the same bits back. Numbers go through torch's distributed layer,
gloo on CPUs and NCCL on GPUs. The first rank decides what depends on time or chance: `agree`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

PATIENCE = timedelta(minutes=10)
"""A rank that is dead is noticed by its parent at once; this bounds how long one may compute."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process's place among those of its engine."""

    rank: int
    size: int


def join(ranks: Ranks, address: str, device: torch.device) -> None:
    """Meet the other ranks at `address`, a URL torch knows (`tcp://host:port`, `file://path`)."""
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=address,
        rank=ranks.rank,
        world_size=ranks.size,
        timeout=PATIENCE,
        device_id=device if device.type == "cuda" else None,
    )


def leave() -> None:
    dist.destroy_process_group()


class Voice(Protocol):
    """The way from the first rank to the others, in order."""

    def agree(self, value: Any) -> Any: ...


_voice: Voice | None = None


def listen_to(voice: Voice | None) -> None:
    """From now on `agree` goes this way."""
    global _voice
    _voice = voice


def agree(value: T) -> T:
    """What the first rank has found, on all of them: for whatever chance or time decide. An engine
    of one rank agrees with itself."""
    if _voice is None:
        return value
    agreed: T = _voice.agree(value)
    return agreed


def add_up(tensor: Tensor) -> Tensor:
    """The same tensor, its numbers summed over all ranks."""
    size = dist.get_world_size()
    if size == 2 or tensor.is_cuda:
        dist.all_reduce(tensor)
        return tensor
    # A ring adds up in an order that depends on where in the buffer a number lies, and so on who
    # else is in the batch; on a CPU no bit may.
    first, *others = every_share(tensor, size)
    for other in others:
        first.add_(other)
    return tensor.copy_(first)


def largest(value: float) -> float:
    """NaN where one rank's is."""
    found = torch.tensor([value, float(value != value)], dtype=torch.float64)
    found[0] = torch.nan_to_num(found[0], nan=0.0, posinf=float("inf"), neginf=float("-inf"))
    moved = found.to(_device())
    dist.all_reduce(moved, op=dist.ReduceOp.MAX)
    most, undefined = moved.tolist()
    return float("nan") if undefined else float(most)


def smallest(values: Sequence[int]) -> list[int]:
    """Each of them over all ranks."""
    found = torch.tensor(list(values), dtype=torch.int64, device=_device())
    dist.all_reduce(found, op=dist.ReduceOp.MIN)
    return [int(value) for value in found.tolist()]


def every_share(tensor: Tensor, size: int) -> list[Tensor]:
    """All ranks' tensors of this shape, in the order of ranks."""
    shares = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_gather(shares, tensor.contiguous())
    return shares


def enter(x: Tensor) -> Tensor:
    """The input of a part that each rank computes its share of. Gradients come back as shares, and
    are summed."""
    return _Enter.apply(x) if torch.is_grad_enabled() else x  # type: ignore[no-untyped-call]  # torch's `apply` is untyped


def summed(x: Tensor) -> Tensor:
    """The output of such a part: what the ranks' shares sum to. `x` may be written over."""
    if x.requires_grad and torch.is_grad_enabled():
        return _Summed.apply(x)  # type: ignore[no-any-return, no-untyped-call]  # torch's `apply` is untyped
    return add_up(x)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return add_up(grads[0].clone(memory_format=torch.contiguous_format))


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return add_up(x.clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def _device() -> torch.device:
    """Where this backend wants small numbers to lie."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
