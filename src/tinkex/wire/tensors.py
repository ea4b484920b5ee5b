"""Tensors inside result messages: raw bytes to arrays and back, for every dtype of the schema.

bfloat16 is widened to float32 and int32 to int64, so that users meet two dtypes only.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tinkex.types.csr import Csr
from tinkex.types.tensor_data import TensorArray, TensorData
from tinkex.wire import schema_pb2 as pb
from tinkex.wire.errors import WireError

_STORED: Final[dict[int, str]] = {1: "<f4", 2: "<i8", 3: "<i4", 4: "<u2"}
_ENUM: Final = {"float32": pb.DTYPE_FLOAT32, "int64": pb.DTYPE_INT64}


def element_bytes(dtype: int, place: str) -> int:
    return _stored(dtype, place).itemsize


def values_from_bytes(data: bytes, dtype: int, place: str) -> TensorArray:
    """A new writable float32 or int64 array; WireError for an unknown dtype or an odd length."""
    stored = _stored(dtype, place)
    if len(data) % stored.itemsize:
        raise WireError(place, f"has {len(data)} bytes, not a multiple of {stored.itemsize}")
    raw = np.frombuffer(data, dtype=stored)
    if dtype == pb.DTYPE_BFLOAT16:
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.int64) if stored.kind == "i" else raw.astype(np.float32)


def dtype_number(array: NDArray[Any]) -> pb.DType:
    """The schema's number for a float or signed integer array."""
    return _ENUM["float32" if array.dtype.kind == "f" else "int64"]


def stored(array: NDArray[Any], dtype: int) -> NDArray[Any]:
    """Row-major and little-endian in a dtype of the schema; the same object if it is already."""
    return np.ascontiguousarray(array, dtype=_STORED[dtype])


def raw_bytes(array: NDArray[Any]) -> bytes:
    """Little-endian float32 or int64, row-major."""
    return stored(array, dtype_number(array)).tobytes()


def tensor_from_message(message: Any, place: str) -> TensorData:
    shape = list(message.shape) or None
    try:
        if message.HasField("sparse_csr"):
            return _sparse(message, shape, place)
        return TensorData(
            *_typed(values_from_bytes(message.dense, message.dtype, place)), shape=shape
        )
    except WireError:
        raise
    except ValueError as error:
        raise WireError(place, str(error)) from error


def tensor_to_message(tensor: TensorData) -> Any:
    """A tensor of a result, sparse if it is sparse."""
    csr = tensor.csr
    if csr is None:
        array = tensor.to_numpy()
        shape = array.shape if tensor.shape is None else tensor.shape
        return pb.Tensor(dense=raw_bytes(array), dtype=dtype_number(array), shape=shape)
    return pb.Tensor(
        sparse_csr=_csr_message(csr), dtype=dtype_number(csr.values), shape=list(csr.shape)
    )


def _csr_message(csr: Csr) -> Any:
    return pb.SparseCsr(
        values=raw_bytes(csr.values),
        crow_indices=raw_bytes(csr.crow),
        col_indices=raw_bytes(csr.col),
    )


def _sparse(message: Any, shape: list[int] | None, place: str) -> TensorData:
    csr = message.sparse_csr
    values, dtype = _typed(values_from_bytes(csr.values, message.dtype, place))
    crow = values_from_bytes(csr.crow_indices, pb.DTYPE_INT64, f"{place}.crow_indices")
    col = values_from_bytes(csr.col_indices, pb.DTYPE_INT64, f"{place}.col_indices")
    return TensorData(values, dtype, shape, crow, col)  # type: ignore[arg-type]  # arrays serve as lists there


def _typed(array: TensorArray) -> tuple[TensorArray, Any]:
    return array, "float32" if array.dtype.kind == "f" else "int64"


def _stored(dtype: int, place: str) -> np.dtype[Any]:
    if dtype not in _STORED:
        raise WireError(f"{place}.dtype", f"is {dtype}; known are 1 to 4")
    return np.dtype(_STORED[dtype])
