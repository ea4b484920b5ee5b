"""Checks a call's data and lays it out as flat vectors, before anything else happens.

After this step nothing about the input can go wrong: ids are in the vocabulary, lengths in the
context, shapes agree, numbers are finite. Host memory only; knows nothing of models or devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.errors import UserError
from tinkex.engine.limits import Limits
from tinkex.engine.messages import Csr, Datum, Routes, Tensor

Array = NDArray[np.generic]
A = TypeVar("A", bound=Array)


@dataclass(frozen=True, slots=True)
class CheckedDatum:
    """A sequence and its targets."""

    tokens: NDArray[np.int64]  # what the model reads
    shape: tuple[int, ...]  # of `target_tokens`: [N] or [N, K]
    targets: NDArray[np.int64]  # flat over the cells, row by row
    inputs: Mapping[str, NDArray[np.float32]]  # by name, flat likewise
    extra: Mapping[str, Array]  # inputs whose shape is their own: a custom loss's
    live: NDArray[np.bool_]  # flat likewise; a cell that is not has no slope
    routes: Routes | None = None  # those that are kept of its first tokens


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the model and the engine allow."""

    vocab_size: int
    max_context: int
    limits: Limits

    def within(self, context: int | None) -> Bounds:
        """The same bounds, with at most so many tokens in a sequence."""
        if context is None or context >= self.max_context:
            return self
        return replace(self, max_context=context)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The inputs of a loss besides `target_tokens`. `ranks` are those of a custom loss."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    live_input: str | None
    ranks: Mapping[str, int]


def check_data(data: tuple[Datum, ...], wanted: Wanted, bounds: Bounds) -> list[CheckedDatum]:
    """Check every datum; `UserError` names the first wrong one and what would be right."""
    if not data:
        raise UserError("data: the list is empty; a call needs at least one datum")
    if len(data) > bounds.limits.max_data:
        raise UserError(f"data: {len(data)} datums are over the limit of {bounds.limits.max_data}")
    for index, datum in enumerate(data):
        for name in sorted(datum.inputs.keys() ^ data[0].inputs.keys()):
            raise UserError(
                f"data[{index}].loss_fn_inputs: {name!r} is given for some datums of the call and "
                f"not for others"
            )
    return [_check_datum(f"data[{i}]", datum, wanted, bounds) for i, datum in enumerate(data)]


def _check_datum(where: str, datum: Datum, wanted: Wanted, bounds: Bounds) -> CheckedDatum:
    tokens = _check_tokens(f"{where}.model_input", datum.tokens, bounds)
    _check_names(where, datum.inputs, wanted)
    name = f"{where}.loss_fn_inputs"
    targets = _dense(f"{name}.target_tokens", datum.inputs["target_tokens"], bounds.limits)
    shape = targets.shape
    if targets.ndim not in (1, 2) or shape[0] != len(tokens) or targets.size == 0:
        raise UserError(
            f"{name}.target_tokens has the shape {list(shape)}; with {len(tokens)} tokens it must "
            f"be [{len(tokens)}] or [{len(tokens)}, K]"
        )
    ids = _check_ids(f"{name}.target_tokens", targets, bounds.vocab_size)
    extra = {n: _check_rank(f"{name}.{n}", datum.inputs[n], r) for n, r in wanted.ranks.items()}
    inputs = {
        key: _check_values(f"{name}.{key}", value, shape, bounds.limits)
        for key, value in sorted(datum.inputs.items())
        if key != "target_tokens" and key not in wanted.ranks
    }
    live = np.ones(ids.size, dtype=bool)
    if wanted.live_input is not None:
        live = inputs[wanted.live_input] != 0
    return CheckedDatum(tokens, shape, ids.reshape(-1), inputs, extra, live, datum.routes)


def _check_names(where: str, given: Mapping[str, Tensor], wanted: Wanted) -> None:
    needed = {"target_tokens", *wanted.required, *wanted.ranks}
    for name in sorted(needed - given.keys()):
        raise UserError(f"{where}.loss_fn_inputs: {name!r} is missing")
    for name in sorted(given.keys() - needed - set(wanted.optional)):
        known = ", ".join(sorted(needed | set(wanted.optional)))
        raise UserError(f"{where}.loss_fn_inputs: {name!r} is not an input of this loss ({known})")


def _check_tokens(where: str, tokens: Array, bounds: Bounds) -> NDArray[np.int64]:
    array = np.asarray(tokens)
    if array.ndim != 1:
        raise UserError(f"{where} must be a row of token ids, not of shape {list(array.shape)}")
    if array.size == 0:
        raise UserError(f"{where} is empty; a sequence needs at least one token")
    if array.size > bounds.max_context:
        raise UserError(
            f"{where} has {array.size} tokens; this model takes at most {bounds.max_context}"
        )
    return _check_ids(where, array, bounds.vocab_size)


def _check_ids(where: str, array: Array, vocab_size: int) -> NDArray[np.int64]:
    if not np.issubdtype(array.dtype, np.integer):
        raise UserError(f"{where} must hold whole numbers, not {array.dtype}")
    ids = array.astype(np.int64)
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise UserError(f"{where} holds the id {wrong}; this model's ids are 0 to {vocab_size - 1}")
    return ids


def _check_values(
    where: str, value: Tensor, shape: tuple[int, ...], limits: Limits
) -> NDArray[np.float32]:
    array = _dense(where, value, limits)
    if array.shape != shape:
        raise UserError(
            f"{where} has the shape {list(array.shape)}; it must match target_tokens, {list(shape)}"
        )
    _check_real(where, array)
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    return _check_finite(where, narrow).reshape(-1)


def _check_rank(where: str, value: Tensor, rank: int) -> Array:
    if isinstance(value, Csr):
        raise UserError(f"{where} is sparse; a custom loss takes dense inputs")
    array = np.asarray(value)
    if rank == 0 and array.size == 1:
        array = array.reshape(())
    if array.ndim != rank:
        raise UserError(f"{where} has the shape {list(array.shape)}; the loss declared rank {rank}")
    _check_real(where, array)
    return _check_finite(where, array.copy())


def _check_real(where: str, array: Array) -> None:
    if not np.issubdtype(array.dtype, np.number) or np.issubdtype(array.dtype, np.complexfloating):
        raise UserError(f"{where} must hold real numbers, not {array.dtype}")


def _check_finite(where: str, array: A) -> A:
    if not np.isfinite(array).all():
        raise UserError(f"{where} holds NaN or infinity; every value must be finite")
    return array


def _dense(where: str, value: Tensor, limits: Limits) -> Array:
    shape = tuple(value.shape)
    if math.prod(shape) > limits.max_target_cells:
        raise UserError(
            f"{where} has {math.prod(shape)} cells; the limit is {limits.max_target_cells}"
        )
    return _from_csr(where, value) if isinstance(value, Csr) else np.asarray(value)


def _from_csr(where: str, value: Csr) -> Array:
    rows, columns = value.shape
    counts = np.diff(value.crow)
    sound = (
        value.crow.shape == (rows + 1,)
        and len(value.crow) > 0
        and value.crow[0] == 0
        and value.crow[-1] == len(value.values) == len(value.col)
        and bool((counts >= 0).all())
    )
    if not sound or (len(value.col) and not 0 <= value.col.min() <= value.col.max() < columns):
        raise UserError(
            f"{where}: the row pointers and columns are not those of a sparse [{rows}, {columns}] "
            f"tensor with {len(value.values)} values"
        )
    dense = np.zeros((rows, columns), dtype=value.values.dtype)
    dense[np.repeat(np.arange(rows), counts), value.col] = value.values
    return dense
