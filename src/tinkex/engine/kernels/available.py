"""Says where Triton kernels take over from chains of torch operations: on a GPU with Triton.

Modules of kernels import Triton as they load, so they are imported only after this has said yes.
"""

from __future__ import annotations

import functools
import importlib.util

from torch import Tensor


def runs_triton(x: Tensor) -> bool:
    """Whether kernels can take this tensor."""
    return x.is_cuda and _installed()


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None
