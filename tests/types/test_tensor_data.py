"""TensorData holds one array, converts losslessly, and refuses what would change meaning."""

import copy
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from tinkex.types import TensorData
from tinkex.types.tensor_data import sparse_if_smaller

torch = pytest.importorskip("torch")


def test_a_list_becomes_one_array_and_the_list_is_only_made_when_read() -> None:
    tensor = TensorData([1, 2, 3, 4], "float32", [2, 2])
    assert tensor._numpy.dtype == np.float32
    assert not any(
        isinstance(value, list) for name, value in vars(tensor).items() if name != "shape"
    )
    assert tensor.data == [1.0, 2.0, 3.0, 4.0]
    assert tensor.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_numpy_memory_is_shared_when_nothing_changes() -> None:
    array = np.zeros(3, dtype=np.float32)
    tensor = TensorData.from_numpy(array)
    array[0] = 9
    assert tensor.data == [9.0, 0.0, 0.0]


def test_read_only_memory_is_copied_so_that_results_can_be_changed() -> None:
    array = np.frombuffer(b"\x00\x00\x80\x3f", dtype=np.float32)
    tensor = TensorData.from_numpy(array)
    tensor.to_numpy()[0] = 5
    assert array[0] == 1.0


@given(arrays(np.float64, array_shapes(max_dims=3), elements=st.floats(-1e6, 1e6, width=32)))
def test_floats_survive_the_round_trip(array: np.ndarray) -> None:
    tensor = TensorData.from_numpy(array)
    assert tensor.dtype == "float32"
    assert tensor.shape == list(array.shape)
    assert np.array_equal(tensor.to_numpy(), array.astype(np.float32))
    assert np.array_equal(tensor.to_torch().numpy(), tensor.to_numpy())


@given(
    arrays(np.int64, array_shapes(min_dims=2, max_dims=2, max_side=8), elements=st.integers(-2, 3)),
    st.integers(-2, 3),
)
def test_sparse_and_dense_hold_the_same_values(array: np.ndarray, pad: int) -> None:
    tensor = sparse_if_smaller(array, pad)
    rows, columns = array.shape
    listed = int((array != pad).sum())
    assert (tensor.csr is not None) == ((rows + 1) + 2 * listed < rows * columns)
    assert np.array_equal(tensor.to_numpy(pad_value=pad), array)
    official = pytest.importorskip("tinker").TensorData
    theirs = official.from_torch_sparse(torch.from_numpy(array.copy()), pad_value=pad)
    assert theirs.sparse_crow_indices == tensor.sparse_crow_indices
    assert theirs.sparse_col_indices == tensor.sparse_col_indices
    assert theirs.data == tensor.data


def test_bfloat16_is_widened() -> None:
    tensor = TensorData.from_torch(torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    assert (tensor.dtype, tensor.data) == ("float32", [1.5, -2.0])


def test_pickling_and_copying_keep_the_values() -> None:
    sparse = TensorData([5, 6], "int64", [2, 2], [0, 1, 2], [0, 1])
    for again in (pickle.loads(pickle.dumps(sparse)), copy.deepcopy(sparse)):
        assert again.tolist() == [[5, 0], [0, 6]]
        assert again.sparse_crow_indices == [0, 1, 2]


def test_equality_is_identity_and_the_type_is_frozen() -> None:
    tensor = TensorData([1], "int64")
    assert tensor == tensor
    assert tensor != TensorData([1], "int64")
    assert len({tensor, tensor}) == 1
    with pytest.raises(AttributeError):
        tensor.dtype = "float32"


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"data": [1]}, TypeError, "dtype"),
        ({"data": [1], "dtype": "int32"}, ValueError, "dtype must be"),
        ({"data": [1.5], "dtype": "int64"}, ValueError, "fractions"),
        ({"data": [float("nan")], "dtype": "int64"}, ValueError, "NaN"),
        ({"data": ["a"], "dtype": "int64"}, ValueError, "numbers"),
        ({"data": [[1, 2], [3]], "dtype": "int64"}, ValueError, "rectangular"),
        ({"data": [1, 2, 3], "dtype": "int64", "shape": [2, 2]}, ValueError, "does not fit"),
        ({"data": [1, 2], "dtype": "int64", "shape": [-1]}, ValueError, "negative"),
        ({"data": [1], "dtype": "int64", "sparse_crow_indices": [0, 1]}, ValueError, "set both"),
        (
            {
                "data": [1],
                "dtype": "int64",
                "shape": [1, 1],
                "sparse_crow_indices": [0, 1],
                "sparse_col_indices": [4],
            },
            ValueError,
            "must lie in",
        ),
    ],
)
def test_bad_tensors_are_refused_by_name(
    arguments: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        TensorData(**arguments)


@pytest.mark.parametrize("array", [np.zeros(2, np.uint8), np.zeros(2, bool), np.array(["x"])])
def test_unsupported_numpy_dtypes_are_refused(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match="unsupported dtype"):
        TensorData.from_numpy(array)


@pytest.mark.parametrize("pad", [True, 1.0, "0"])
def test_the_pad_value_must_be_an_integer(pad: object) -> None:
    with pytest.raises(TypeError, match="pad_value"):
        TensorData([1], "int64").to_numpy(pad)


def test_torch_methods_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="pip install torch"):
        TensorData([1], "int64").to_torch()
