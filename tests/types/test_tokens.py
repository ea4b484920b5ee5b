"""Token ids keep the form they came in, are checked once, and reach the wire as int32."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tinkex.types import EncodedTextChunk
from tinkex.types.tokens import TokenArray, TokenList

ids = st.integers(0, 2**31 - 1)


@given(st.lists(ids))
def test_a_list_stays_a_list_and_is_known_as_int32(tokens: list[int]) -> None:
    chunk = EncodedTextChunk(tokens=tokens)
    assert isinstance(chunk.tokens, list)
    assert chunk.tokens == tokens
    assert chunk.ids.dtype == np.int32
    assert chunk.ids.tolist() == tokens
    assert chunk.length == len(tokens)


@given(st.lists(ids, min_size=1))
def test_an_array_stays_an_array_and_reads_like_the_list(tokens: list[int]) -> None:
    chunk = EncodedTextChunk(tokens=np.array(tokens))
    assert isinstance(chunk.tokens, TokenArray)
    assert chunk == EncodedTextChunk(tokens=tokens)
    assert EncodedTextChunk(tokens=tokens) == chunk
    assert list(chunk.tokens) == tokens
    assert chunk.tokens[:-1] == tokens[:-1]
    assert chunk.tokens[0] == tokens[0]
    assert type(chunk.tokens[0]) is int
    assert chunk.tokens + [1] == [*tokens, 1]  # noqa: RUF005 - the sum is what is tested
    assert [1] + chunk.tokens == [1, *tokens]  # noqa: RUF005 - the sum is what is tested
    assert np.asarray(chunk.tokens).tolist() == tokens
    assert repr(chunk) == repr(EncodedTextChunk(tokens=tokens))
    assert chunk.model_dump() == {"tokens": tokens, "type": "encoded_text"}


def test_tuples_ranges_and_tensors_are_accepted() -> None:
    torch = pytest.importorskip("torch")
    assert EncodedTextChunk(tokens=(1, 2)).tokens == (1, 2)
    assert EncodedTextChunk(tokens=range(3)).tokens == [0, 1, 2]
    assert EncodedTextChunk(tokens=torch.tensor([4, 5])).tokens == [4, 5]
    assert EncodedTextChunk(tokens=[np.int64(3)]).tokens == [3]
    assert EncodedTextChunk(tokens=[7.0]).tokens == [7]


def test_changing_the_list_changes_what_is_sent() -> None:
    chunk = EncodedTextChunk(tokens=[1, 2])
    assert isinstance(chunk.tokens, TokenList)
    chunk.tokens.append(3)
    chunk.tokens[0] = 9
    assert chunk.ids.tolist() == [9, 2, 3]


def test_the_callers_list_is_not_the_chunks_list() -> None:
    tokens = [1, 2]
    chunk = EncodedTextChunk(tokens=tokens)
    tokens.append(3)
    assert chunk.tokens == [1, 2]


@pytest.mark.parametrize("tokens", [[1, 2], (1, 2), np.array([1, 2])])
def test_chunks_survive_pickling_and_copying(tokens: object) -> None:
    chunk = EncodedTextChunk(tokens=tokens)
    for again in (pickle.loads(pickle.dumps(chunk)), copy.deepcopy(chunk)):
        assert again == chunk
        assert again.ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        ([True, False], "entry 0 is a bool"),
        ([0, True], "entry 1 is a bool"),
        ([1, 1.5], "entry 1 is 1.5"),
        ([3, -1], "entry 1 is -1"),
        ([2**31], "entry 0 is 2147483648"),
        ([1, None], "entry 1 is a NoneType"),
        (["1"], "entry 0 is a str"),
        ("12", "got str"),
        (b"12", "got bytes"),
        (5, "got int"),
        (np.array([1.0]), "integer dtype, got float64"),
        (np.array([True]), "integer dtype, got bool"),
        (np.array([[1]]), r"one-dimensional, got shape \[1, 1\]"),
        (np.array([2**40]), "entry 0 is 1099511627776"),
        (np.array([2**31], dtype=np.uint32), "entry 0 is 2147483648"),
        (np.array([4, -2]), "entry 1 is -2"),
    ],
)
def test_what_is_not_a_token_id_is_named(tokens: object, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        EncodedTextChunk(tokens=tokens)
