"""A model input is chunks in order; every change makes a new one."""

import re
from typing import Any

import pytest
from pydantic import ValidationError

from tinkex.types import (
    DmelChunk,
    EncodedTextChunk,
    ImageAssetPointerChunk,
    ImageChunk,
    ModelInput,
)


def test_ints_round_trip_and_appending_makes_new_inputs() -> None:
    first = ModelInput.from_ints([1, 2])
    second = first.append_int(3).append(EncodedTextChunk(tokens=[4]))
    assert first.to_ints() == [1, 2]
    assert second.to_ints() == [1, 2, 3, 4]
    assert len(second.chunks) == 3
    assert second.length == 4
    assert ModelInput.empty().length == 0


class Tokenizer:
    def __init__(self, result: object) -> None:
        self.result = result

    def encode(self, text: str) -> object:
        assert text == "hello"
        return self.result


def test_text_is_encoded_by_the_tokenizer_it_is_given() -> None:
    class Ids:
        ids = (5, 6)

    assert ModelInput.from_text("hello", Tokenizer([5, 6])).to_ints() == [5, 6]
    assert ModelInput.from_text("hello", Tokenizer(Ids())).to_ints() == [5, 6]


@pytest.mark.parametrize("wrong", ["acme/llama-9b", b"acme/llama-9b", None, 3])
def test_what_is_no_tokenizer_is_named(wrong: Any) -> None:
    with pytest.raises(TypeError, match=re.escape(f"{wrong!r}. Load it first")):
        ModelInput.from_text("hello", wrong)


def test_text_must_be_text() -> None:
    with pytest.raises(TypeError, match="text: expected a string, got list"):
        ModelInput.from_text(["hello"], Tokenizer([5, 6]))


def test_images_take_base64_and_give_it_back() -> None:
    chunk = ImageChunk(data=b"ab", format="png", expected_tokens=3)
    assert chunk.model_dump()["data"] == "YWI="
    assert ImageChunk.model_validate_json(chunk.model_dump_json()) == chunk
    assert chunk.length == 3


@pytest.mark.parametrize(
    "chunk",
    [
        ImageChunk(data=b"", format="png"),
        ImageAssetPointerChunk(format="jpeg", location="x"),
    ],
)
def test_an_image_without_expected_tokens_has_no_length(chunk: ImageChunk) -> None:
    with pytest.raises(ValueError, match="set expected_tokens"):
        _ = chunk.length


@pytest.mark.parametrize(
    ("container", "length"),
    [(b"\xfe\x01\x02\x05\x03xx", 5), (b"\x01\x01\x85\x02", 261), (b"\x00\x01\x00", 0)],
)
def test_audio_is_as_long_as_its_first_dimension(container: bytes, length: int) -> None:
    assert DmelChunk(dmel=container).length == length


@pytest.mark.parametrize("container", [b"", b"\xfe", b"\x01\x00", b"\x09\x01\x01", b"\x01\x01\x85"])
def test_damaged_audio_is_refused(container: bytes) -> None:
    with pytest.raises(ValueError, match="dmel"):
        _ = DmelChunk(dmel=container).length


def test_chunks_are_told_apart_by_type_or_by_their_own_key() -> None:
    read = ModelInput.model_validate(
        {
            "chunks": [
                {"tokens": [1]},
                {"type": "image", "data": "YWI=", "format": "png"},
                {"dmel": "AAEB"},
                {"location": "x", "format": "png"},
            ]
        }
    )
    kinds = [type(chunk).__name__ for chunk in read.chunks]
    assert kinds == ["EncodedTextChunk", "ImageChunk", "DmelChunk", "ImageAssetPointerChunk"]


def test_only_text_turns_into_ints() -> None:
    mixed = ModelInput(chunks=[ImageChunk(data=b"", format="png")])
    with pytest.raises(ValueError, match=r"chunks\[0\] is a ImageChunk"):
        mixed.to_ints()


@pytest.mark.parametrize(
    ("chunk", "says"),
    [
        ({"type": "video"}, "video"),
        ({"type": "image", "data": "!!", "format": "png"}, "base64"),
        ({"type": "image", "data": "YWI=", "format": "gif"}, "png"),
        ({"type": "encoded_text", "tokens": [1], "extra": 2}, "Extra inputs"),
    ],
)
def test_bad_chunks_are_refused(chunk: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ModelInput.model_validate({"chunks": [chunk]})


def test_values_are_frozen_and_print_as_they_are_written() -> None:
    value = ModelInput.from_ints([1])
    with pytest.raises(ValidationError):
        value.chunks = []
    assert str(value) == repr(value)
    assert eval(repr(value)) == value
