"""Programmatic dependent launch: a kernel starts while the one before it still runs.

A decode step is hundreds of kernels of a few microseconds, each of which otherwise waits for the
last program of the one before and only then begins to read. Inside `chained` kernels of this
package are launched so that they may start early (GPUs from Hopper on). What keeps that right:

- Every program of every such kernel waits (`begin`, or `wait` further down) before it ends, and
  before it writes anything. So whoever has waited knows that all kernels before are over.
- Before it waits, a program reads only what no kernel of the chain writes.

Kernels that are none of ours start when everything before them is over, as ever.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call, misc"

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda as extra

_state = threading.local()


@contextmanager
def chained(device: torch.device) -> Iterator[None]:
    """Kernels launched in here, by this thread, may start early where the device can do that."""
    _state.on = _able(device)
    try:
        yield
    finally:
        _state.on = False


def options() -> dict[str, bool]:
    """What a launch is given."""
    return {"CHAINED": True, "launch_pdl": True} if is_on() else {"CHAINED": False}


def is_on() -> bool:
    """Whether kernels launched now may start early."""
    return getattr(_state, "on", False)


@functools.cache
def _able(device: torch.device) -> bool:
    if device.type != "cuda" or not hasattr(extra, "gdc_wait"):
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def begin(CHAINED: tl.constexpr):
    """The next kernel may start; what is before this one is over."""
    if CHAINED:
        extra.gdc_launch_dependents()
        extra.gdc_wait()


@triton.jit
def wait(CHAINED: tl.constexpr):
    """What is before this kernel is over."""
    if CHAINED:
        extra.gdc_wait()


@triton.jit
def let_next_start(CHAINED: tl.constexpr):
    """The kernel behind this one may start."""
    if CHAINED:
        extra.gdc_launch_dependents()
