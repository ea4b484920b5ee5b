"""Batches are cut greedily, in order, by the estimates of the protocol."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.batches import build_chunk, build_datum, datums
from tinkex import types
from tinkex.types import Datum, ImageAssetPointerChunk, ImageChunk, ModelInput, TensorData
from tinkex.wire.chunking import chunk_data, datum_bytes, prompt_bytes


def of_bytes(size: int) -> Datum:
    return Datum(ModelInput.from_ints([1] * (size // 4)))


def test_estimates_count_tokens_tensors_and_indices() -> None:
    datum = Datum(
        ModelInput(
            chunks=[
                types.EncodedTextChunk(tokens=[1, 2, 3]),
                ImageChunk(data=b"12345", format="png"),
            ]
        ),
        {
            "target_tokens": TensorData([1, 2], "int64"),
            "weights": TensorData([5.0], "float32", [2, 2], [0, 1, 1], [0]),
        },
    )
    assert datum_bytes(datum) == 3 * 4 + 5 + 2 * 8 + (4 + 3 * 8 + 1 * 8)
    pointer = ImageAssetPointerChunk(format="png", location="abc")
    assert prompt_bytes(ModelInput(chunks=[pointer]).append_int(1)) == 3 + 10


@given(datums)
def test_estimates_agree_with_the_official_client(description: dict[str, object]) -> None:
    training = pytest.importorskip("tinker.lib.public_interfaces.training_client")
    official = pytest.importorskip("tinker.types")
    theirs = training._estimate_datum_bytes_count_proto(build_datum(official, description))
    assert datum_bytes(build_datum(types, description)) == theirs


def test_a_chunk_closes_before_it_would_grow_too_large() -> None:
    data = [of_bytes(size) for size in (40, 40, 24, 400, 4)]
    cut = list(chunk_data(data, max_datums=10, max_bytes=100))
    assert [[datum_bytes(d) for d in chunk] for chunk, _ in cut] == [[40, 40], [24], [400], [4]]
    assert [size for _, size in cut] == [80, 24, 400, 4]


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 5), st.integers(1, 400))
def test_chunks_keep_order_and_limits(sizes: list[int], count: int, limit: int) -> None:
    data = [of_bytes(4 * size) for size in sizes]
    cut = list(chunk_data(data, max_datums=count, max_bytes=limit))
    assert [datum for chunk, _ in cut for datum in chunk] == data
    for chunk, size in cut:
        assert 1 <= len(chunk) <= count
        assert size == sum(datum_bytes(datum) for datum in chunk)
        assert size <= limit or len(chunk) == 1


def test_arrays_count_like_lists() -> None:
    chunk = build_chunk(types, ("text", np.array([1, 2])))
    assert prompt_bytes(ModelInput(chunks=[chunk])) == 20
