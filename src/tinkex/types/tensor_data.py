"""A named loss input or output: one numpy array, dense or compressed by rows.

Knows the two dtypes of the API and the CSR layout. Torch is touched only by the methods that have
it in their name, and only when called.
"""

from array import array as packed
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from tinkex.types.csr import Csr, check_csr, csr_from_dense, dense_from_csr
from tinkex.types.shortened import shown_with
from tinkex.types.strictness import exported

if TYPE_CHECKING:
    import torch

TensorDtype: TypeAlias = Literal["int64", "float32"]

Int64Array: TypeAlias = NDArray[np.int64]
TensorArray: TypeAlias = NDArray[np.int64] | NDArray[np.float32]

_NUMPY_DTYPES: dict[str, Any] = {"int64": np.int64, "float32": np.float32}
_TYPE_CODES = {"int64": "q", "float32": "f"}


class _IndexList:
    """Shows a private index array as the list (or None) that the API promises."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: object, kind: type | None = None) -> list[int] | None:
        indices = None if owner is None else getattr(owner, self.name)
        return None if indices is None else indices.tolist()


@exported
@dataclass(frozen=True, eq=False, init=False)
class TensorData:
    """Numbers of one dtype with an optional shape, or the CSR form of a 2-D tensor.

    Holds one array; a Python list exists only while you ask for `data` or `tolist()`. Two tensors
    are equal only when they are the same object: compare values with `numpy.array_equal`.
    """

    dtype: TensorDtype
    shape: list[int] | None = None
    sparse_crow_indices: list[int] | None = _IndexList("_crow")  # type: ignore[assignment]  # a list to its readers, made by a descriptor
    sparse_col_indices: list[int] | None = _IndexList("_col")  # type: ignore[assignment]  # a list to its readers, made by a descriptor
    _numpy: TensorArray = field(repr=False)  # type: ignore[misc]  # no default behind defaults: there is an `__init__`

    def __init__(
        self,
        data: ArrayLike | None = None,
        dtype: TensorDtype | None = None,
        shape: Sequence[int] | None = None,
        sparse_crow_indices: Sequence[int] | Int64Array | None = None,
        sparse_col_indices: Sequence[int] | Int64Array | None = None,
    ) -> None:
        if dtype is None:
            raise TypeError('TensorData needs dtype: "int64" or "float32"')
        array = _as_array([] if data is None else data, dtype)
        dims = _checked_shape(shape)
        crow, col = _index_array(sparse_crow_indices), _index_array(sparse_col_indices)
        if crow is not None or col is not None:
            check_csr(array, crow, col, dims)
        elif dims is not None:
            array = _reshaped(array, dims)
        _fill(self, dtype, dims, array, crow, col)

    def __repr__(self) -> str:
        facts = {"dtype": repr(self.dtype), "shape": repr(self.shape)}
        if self.csr is not None:
            facts["sparse"] = "True"
        return shown_with("TensorData", facts, data=self._numpy.ravel())

    @property
    def data(self) -> list[int] | list[float]:
        """The values as a flat list: all cells when dense, the listed ones when sparse."""
        return self._numpy.ravel().tolist()

    @property
    def csr(self) -> Csr | None:
        """The CSR parts, or None when dense (an addition of tinkex)."""
        crow, col = self.__dict__["_crow"], self.__dict__["_col"]
        if crow is None or self.shape is None:
            return None
        return Csr(self._numpy, crow, col, (self.shape[0], self.shape[1]))

    @property
    def nbytes(self) -> int:
        """Bytes of the values and, when sparse, of the indices (an addition of tinkex)."""
        csr = self.csr
        return self._numpy.nbytes + (0 if csr is None else csr.crow.nbytes + csr.col.nbytes)

    @classmethod
    def from_numpy(cls, array: NDArray[Any]) -> "TensorData":
        """Dense: floats become float32, signed ints int64. Shares memory when nothing changes."""
        if not isinstance(array, np.ndarray):
            raise TypeError(f"from_numpy needs a numpy array, got {type(array).__name__}")
        return dense_tensor(array, dtype_of(array))

    @classmethod
    def from_torch(cls, tensor: "torch.Tensor") -> "TensorData":
        """Dense, by the same rules as `from_numpy`; bfloat16 is widened."""
        array = _torch_to_numpy(tensor)
        return dense_tensor(array, dtype_of(array))

    @classmethod
    def from_torch_sparse(cls, tensor: "torch.Tensor", pad_value: int = 0) -> "TensorData":
        """CSR of the cells that differ from `pad_value` when that is smaller, else dense."""
        return sparse_if_smaller(_torch_to_numpy(tensor), pad_value)

    def to_numpy(self, pad_value: int = 0) -> TensorArray:
        """The dense array; cells a sparse tensor does not list hold `pad_value`."""
        _check_pad(pad_value)
        csr = self.csr
        return self._numpy if csr is None else dense_from_csr(csr, pad_value)

    def to_torch(self, pad_value: int = 0) -> "torch.Tensor":
        """The dense tensor, sharing memory with this one where it can."""
        _check_pad(pad_value)
        tensor: torch.Tensor = _torch().from_numpy(self.to_numpy(pad_value))
        return tensor

    def tolist(self, pad_value: int = 0) -> Any:
        """The dense values as nested lists (a bare number for a scalar)."""
        return self.to_numpy(pad_value).tolist()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _validated,
            serialization=core_schema.plain_serializer_function_ser_schema(tensor_fields),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        sizes = {"type": "array", "items": {"type": "integer"}}
        return {
            "type": "object",
            "properties": {
                "data": {"type": "array", "items": {"type": "number"}},
                "dtype": {"enum": list(get_args(TensorDtype))},
                **dict.fromkeys(_FIELDS[2:], sizes),
            },
            "required": ["dtype"],
            "additionalProperties": False,
        }


def _fill(
    tensor: TensorData,
    dtype: TensorDtype,
    shape: list[int] | None,
    array: TensorArray,
    crow: Int64Array | None = None,
    col: Int64Array | None = None,
) -> TensorData:
    """The only writer of a TensorData: frozen classes are filled through their dictionary."""
    tensor.__dict__.update(dtype=dtype, shape=shape, _numpy=array, _crow=crow, _col=col)
    return tensor


def dense_tensor(data: ArrayLike, dtype: TensorDtype) -> TensorData:
    """A dense tensor with the shape the data has by itself."""
    array = _as_array(data, dtype)
    return _fill(TensorData.__new__(TensorData), dtype, list(array.shape), array)


def sparse_if_smaller(array: NDArray[Any], pad_value: int = 0) -> TensorData:
    """What `from_torch_sparse` does, for an array."""
    _check_pad(pad_value)
    values = _as_array(array, dtype_of(array))
    csr = csr_from_dense(values, pad_value) if values.ndim == 2 else None
    if csr is None:
        return dense_tensor(values, dtype_of(values))
    tensor = TensorData.__new__(TensorData)
    return _fill(tensor, dtype_of(array), list(csr.shape), csr.values, csr.crow, csr.col)


def dtype_of(array: NDArray[Any]) -> TensorDtype:
    """The API's dtype for a numpy array; ValueError for unsigned, bool and the rest."""
    if array.dtype.kind == "f":
        return "float32"
    if array.dtype.kind == "i":
        return "int64"
    raise ValueError(
        f"unsupported dtype {array.dtype}: use a float array (kept as float32) "
        "or a signed integer array (kept as int64)"
    )


def tensor_fields(tensor: TensorData) -> dict[str, Any]:
    """The JSON form: the fields that are set, values as one flat list."""
    fields = {
        "data": tensor.data,
        "dtype": tensor.dtype,
        "shape": tensor.shape,
        "sparse_crow_indices": tensor.sparse_crow_indices,
        "sparse_col_indices": tensor.sparse_col_indices,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _as_array(data: ArrayLike, dtype: TensorDtype) -> TensorArray:
    """`data` as a writable array of `dtype`; ValueError where values would change meaning."""
    if dtype not in get_args(TensorDtype):
        raise ValueError(f'dtype must be "int64" or "float32", got {dtype!r}')
    if isinstance(data, np.ndarray) and _is_ready(data, dtype):
        return data
    if (flat := _flat_numbers(data, dtype)) is not None:
        return flat
    array = _rectangular(data)
    if array.dtype.kind not in "iufb":
        raise ValueError(f"data must be numbers, {_odd_entry(array)}")
    if dtype == "int64" and array.dtype.kind == "f":
        _check_whole(array)
    converted: TensorArray = np.ascontiguousarray(array, dtype=_NUMPY_DTYPES[dtype])
    converted = converted.reshape(array.shape)
    return converted if converted.flags.writeable else converted.copy()


def _is_ready(array: NDArray[Any], dtype: TensorDtype) -> bool:
    flags = array.flags
    return array.dtype == _NUMPY_DTYPES[dtype] and flags.c_contiguous and flags.writeable


def _flat_numbers(data: object, dtype: TensorDtype) -> TensorArray | None:
    """A flat list of plain numbers in one step; None when it needs a closer look."""
    if type(data) is not list or not data or type(data[0]) not in (int, float):
        return None
    try:
        buffer = packed(_TYPE_CODES[dtype], data)
    except (TypeError, OverflowError):
        return None
    values: TensorArray = np.frombuffer(buffer, dtype=_NUMPY_DTYPES[dtype])
    return values


def _rectangular(data: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(data)
    except ValueError as error:
        raise ValueError("data must be rectangular; ragged nested lists are not") from error


def _odd_entry(array: NDArray[Any]) -> str:
    """What is wrong with the first entry that is no number, for an error message."""
    if array.dtype.kind in "US":
        return "got strings"
    for place, entry in enumerate(array.ravel().tolist()):
        if entry is None:
            return f"entry {place} is None: give unused positions 0"
        if isinstance(entry, int) and not -(2**63) <= entry < 2**63:
            return f"entry {place} does not fit 64 bits"
        if not isinstance(entry, int | float):
            return f"entry {place} is a {type(entry).__name__}"
    return f"got {array.dtype}"


def _check_whole(array: NDArray[Any]) -> None:
    if array.size and not bool((np.isfinite(array) & (array == np.floor(array))).all()):
        raise ValueError("data has fractions or NaN but dtype is int64: round it, or use float32")


def _checked_shape(shape: Sequence[int] | None) -> list[int] | None:
    if shape is None:
        return None
    dims = [int(size) for size in shape]
    if any(size < 0 for size in dims):
        raise ValueError(f"shape must have no negative sizes, got {dims}")
    return dims


def _reshaped(array: TensorArray, shape: list[int]) -> TensorArray:
    try:
        return array.reshape(shape)
    except ValueError as error:
        raise ValueError(f"shape {shape} does not fit {array.size} values") from error


def _index_array(indices: Sequence[int] | Int64Array | None) -> Int64Array | None:
    return None if indices is None else np.asarray(indices, dtype=np.int64)


def _check_pad(pad_value: int) -> None:
    if isinstance(pad_value, bool) or not isinstance(pad_value, int | np.integer):
        raise TypeError(f"pad_value must be an integer, got {type(pad_value).__name__}")


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError("this needs torch: install it with `pip install torch`") from error
    return torch


def _torch_to_numpy(tensor: "torch.Tensor") -> NDArray[Any]:
    torch = _torch()
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a torch tensor, got {type(tensor).__name__}")
    plain = tensor.detach().cpu()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    if plain.dtype == torch.bfloat16:
        plain = plain.float()
    array: NDArray[Any] = plain.numpy()
    return array


_FIELDS = ("data", "dtype", "shape", "sparse_crow_indices", "sparse_col_indices")
"""Of the JSON form."""


def _validated(value: object) -> TensorData:
    if isinstance(value, TensorData):
        return value
    if not isinstance(value, dict):
        raise ValueError(f"expected a tensor object, got {type(value).__name__}")
    if unknown := sorted(set(value) - set(_FIELDS)):
        raise ValueError(f"unknown tensor fields {unknown}; known are {list(_FIELDS)}")
    try:
        return TensorData(**value)
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error
