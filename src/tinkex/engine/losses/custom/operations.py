"""The tensor operations an uploaded loss may use, by the names a torch.fx trace gives them.

This list is the whole of what such a loss can reach. Everything on it is a pure function of its
arguments: nothing writes, opens, imports, draws random numbers or looks up names.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

Operation = Callable[..., Any]

_OPERATORS = """
    add sub mul truediv floordiv mod pow neg pos abs eq ne lt le gt ge and_ or_ xor invert not_
    getitem
"""

# Names that are both torch functions and tensor methods.
_SHARED = """
    abs neg exp expm1 exp2 log log1p log2 log10 sqrt rsqrt square reciprocal sigmoid tanh relu sin
    cos tan erf logit sign floor ceil round trunc clamp clip clamp_min clamp_max pow add sub
    subtract mul multiply div divide true_divide minimum maximum fmin fmax sum mean prod var std min
    max amin amax argmin argmax median logsumexp logaddexp cumsum cumprod logcumsumexp softmax
    log_softmax eq ne lt le gt ge greater less greater_equal less_equal logical_and logical_or
    logical_not logical_xor isnan isfinite isinf nan_to_num where masked_fill gather take
    index_select squeeze unsqueeze reshape flatten transpose permute flip roll
    dot norm any all sort topk narrow select broadcast_to detach numel isclose lerp remainder fmod
    nansum nanmean tril triu negative absolute xlogy hypot atan2 addcmul addcdiv count_nonzero
    t
"""

_TORCH_ONLY = """
    zeros ones full zeros_like ones_like full_like arange stack cat concat special.expit
    special.log_softmax special.softmax special.xlogy linalg.vector_norm
"""

_METHODS_ONLY = """
    size dim float double long int bool half bfloat16 to type_as view view_as reshape_as expand
    expand_as contiguous clone new_zeros new_ones new_full repeat
"""

_FUNCTIONAL = """
    relu leaky_relu elu softplus sigmoid logsigmoid tanh softmax log_softmax silu gelu
    huber_loss smooth_l1_loss mse_loss l1_loss hardtanh softsign relu6 threshold
"""

# Where a trace records the C++ function behind the public name.
_NATIVE = "log_sigmoid softplus gelu leaky_relu huber_loss smooth_l1_loss mse_loss l1_loss"

ATTRIBUTES = frozenset({"shape", "ndim", "dtype", "device", "values", "indices"})

DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool")
}


def _walk(dotted: str) -> Operation:
    found: Any = torch
    for part in dotted.split("."):
        found = getattr(found, part)
    operation: Operation = found
    return operation


def _functions() -> dict[str, Operation]:
    found: dict[str, Operation] = {
        f"operator.{n}": getattr(operator, n) for n in _OPERATORS.split()
    }
    found |= {f"_operator.{name}": found[f"operator.{name}"] for name in _OPERATORS.split()}
    found |= {f"torch.{n}": _walk(n) for n in f"{_SHARED} {_TORCH_ONLY}".split() if _exists(n)}
    found |= {f"torch.nn.functional.{name}": getattr(F, name) for name in _FUNCTIONAL.split()}
    native: Any = torch._C._nn
    return found | {f"torch._C._nn.{name}": getattr(native, name) for name in _NATIVE.split()}


def _exists(dotted: str) -> bool:
    try:
        _walk(dotted)
    except AttributeError:
        return False
    return True


FUNCTIONS = _functions()

METHODS: dict[str, Operation] = {
    name: getattr(torch.Tensor, name)
    for name in f"{_SHARED} {_METHODS_ONLY}".split()
    if hasattr(torch.Tensor, name)
}

SLOW = {
    operation
    for name in ("sort", "topk", "median", "roll")
    for operation in (FUNCTIONS[f"torch.{name}"], METHODS[name])
}
"""What takes many times longer for each cell than the others."""

KEYWORDS = frozenset(
    {"dim", "keepdim", "dtype", "device", "min", "max", "correction", "unbiased", "input", "other",
     "descending", "alpha", "value", "reduction", "beta", "threshold", "delta", "fill_value",
     "size", "start", "end", "step", "nan", "posinf", "neginf", "condition", "index", "mask", "k",
     "p", "ord", "weight", "tensors", "exponent", "inplace", "negative_slope", "approximate", "eps",
     "stable", "largest", "sorted", "dims", "shifts", "rounding_mode", "min_val", "max_val",
     "target", "layout", "memory_format", "diagonal", "stacklevel", "_stacklevel"}
)  # fmt: skip


class Here:
    """Stands for wherever a loss is evaluated: a trace cannot choose."""


def read_attribute(value: Any, name: str) -> Any:
    """A fact about a tensor, or a part of the pair that max, min, sort and the like return."""
    if isinstance(value, tuple) and len(value) == 2 and name in ("values", "indices"):
        return value[name == "indices"]
    if not isinstance(value, torch.Tensor) or name in ("values", "indices"):
        raise TypeError(f"a {type(value).__name__} has no {name!r} to read")
    facts = {"shape": tuple(value.shape), "ndim": value.ndim, "dtype": value.dtype}
    return Here() if name == "device" else facts[name]
