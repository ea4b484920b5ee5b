"""Token ids as users hand them over, kept ready for the wire.

A list stays a list (`TokenList`), because scripts slice, add and dump it; an array stays an array
(`TokenArray`), because turning it into a list would cost more than everything else we do with it.
Either way the ids are checked once and kept as one int32 array. Knows nothing of chunks or models.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]

MAX_TOKEN_ID = 2**31 - 1


class TokenList(list[int]):
    """A list of token ids that remembers its int32 form until somebody changes the list."""

    __slots__ = ("_ids",)

    _ids: Int32Array | None

    def __init__(self, tokens: Iterable[int] = (), ids: Int32Array | None = None) -> None:
        super().__init__(tokens)
        self._ids = ids

    @property
    def ids(self) -> Int32Array:
        if self._ids is None:
            self._ids = checked_ids(list(self))
        return self._ids

    def __reduce__(self) -> tuple[type["TokenList"], tuple[list[int]]]:
        return TokenList, (list(self),)


def _forgetting(name: str) -> Any:
    change = getattr(list, name)

    def changed(self: TokenList, *args: Any, **kwargs: Any) -> Any:
        self._ids = None
        return change(self, *args, **kwargs)

    changed.__name__ = name
    return changed


for _name in (
    *("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse"),
    *("__setitem__", "__delitem__", "__iadd__", "__imul__"),
):
    setattr(TokenList, _name, _forgetting(_name))


class TokenArray(Sequence[int]):
    """Token ids on one read-only int32 array, reading like a list of ints."""

    __slots__ = ("ids",)

    ids: Int32Array

    def __init__(self, ids: Int32Array) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> "TokenArray": ...
    def __getitem__(self, index: SupportsIndex | slice) -> "int | TokenArray":
        if isinstance(index, slice):
            return TokenArray(self.ids[index])
        return int(self.ids[index])

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenArray):
            return np.array_equal(self.ids, other.ids)
        if isinstance(other, list | tuple):
            return len(other) == len(self) and self.ids.tolist() == list(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.ids.tobytes())

    def __add__(self, other: Sequence[int]) -> list[int]:
        return [*self, *other]

    def __radd__(self, other: Sequence[int]) -> list[int]:
        return [*other, *self]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.ids, dtype=dtype, copy=bool(copy) or dtype is not None)

    def __repr__(self) -> str:
        return repr(self.ids.tolist())

    def __reduce__(self) -> tuple[type["TokenArray"], tuple[Int32Array]]:
        return TokenArray, (self.ids,)


def keep_tokens(value: object) -> Sequence[int]:
    """Check `value` and keep it in the form it came in; ValueError says what is wrong with it."""
    # The plain kinds first: to be told from a `TokenArray`, which is abstract, takes longest.
    if isinstance(value, TokenList):
        return TokenList(value, value.ids)
    if isinstance(value, list):
        ids = checked_ids(value)
        exact = not value or type(value[0]) is int
        return TokenList(value if exact else ids.tolist(), ids)
    if isinstance(value, tuple):
        return tuple(checked_ids(list(value)).tolist())
    if isinstance(value, TokenArray):
        return value
    if isinstance(value, str | bytes | bytearray | dict | set):
        raise ValueError(f"tokens must be a sequence of ints, got {type(value).__name__}")
    return _keep_array_like(value)


def _keep_array_like(value: object) -> Sequence[int]:
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        return TokenArray(_checked_array(np.asarray(value)))
    if isinstance(value, Sequence):
        ids = checked_ids(list(value))
        return TokenList(ids.tolist(), ids)
    raise ValueError(f"tokens must be a sequence of ints, got {type(value).__name__}")


def token_ids(tokens: Sequence[int]) -> Int32Array:
    """The int32 form of a chunk's tokens, without copying where it is already known."""
    if isinstance(tokens, TokenList | TokenArray):
        return tokens.ids
    return checked_ids(list(tokens))


def checked_ids(tokens: list[int]) -> Int32Array:
    """int32 ids of a plain list; ValueError unless every entry is an int in 0..2**31-1."""
    try:
        ids: Int32Array = np.frombuffer(array("i", tokens), dtype=np.int32)
    except (TypeError, OverflowError):
        ids = _explained(tokens)
    if not len(ids):
        return ids
    # Without its sign a negative id is larger than any other: one look is enough.
    largest = int(ids.view(np.uint32).max())
    if largest <= 1:
        _refuse_bools(tokens)
    if largest > MAX_TOKEN_ID:
        _check_range(ids)
    return ids


def _explained(tokens: list[Any]) -> Int32Array:
    """The slow path: whole floats become ints, anything else is named."""
    for position, token in enumerate(tokens):
        if isinstance(token, bool) or not isinstance(token, int | float | np.integer):
            kind = type(token).__name__
            raise ValueError(f"tokens must be ints; entry {position} is a {kind}")
        if isinstance(token, float) and not token.is_integer():
            raise ValueError(f"tokens must be ints; entry {position} is {token}")
        if not 0 <= token <= MAX_TOKEN_ID:
            raise ValueError(_range_message(position, int(token)))
    return np.array([int(token) for token in tokens], dtype=np.int32)


def _refuse_bools(tokens: list[int]) -> None:
    """Only a list whose largest value is 1 can be made of bools, so only those are looked at."""
    for position, token in enumerate(tokens):
        if isinstance(token, bool | np.bool_):
            raise ValueError(f"tokens must be ints; entry {position} is a bool")


def _checked_array(values: NDArray[Any]) -> Int32Array:
    if values.ndim != 1:
        raise ValueError(f"tokens must be one-dimensional, got shape {list(values.shape)}")
    if values.dtype.kind not in "iu":
        raise ValueError(f"tokens must have an integer dtype, got {values.dtype}")
    if not len(values):
        return np.zeros(0, dtype=np.int32)
    if values.dtype.itemsize > 4 or values.dtype.kind == "u":
        _check_range(values)
    ids = values.astype(np.int32)
    _check_range(ids)
    ids.flags.writeable = False
    return ids


def _check_range(values: NDArray[Any]) -> None:
    if int(values.min()) < 0 or int(values.max()) > MAX_TOKEN_ID:
        position = int(np.argmax((values < 0) | (values > MAX_TOKEN_ID)))
        raise ValueError(_range_message(position, int(values[position])))


def _range_message(position: int, token: int) -> str:
    return f"token ids lie in 0..{MAX_TOKEN_ID}; entry {position} is {token}"
