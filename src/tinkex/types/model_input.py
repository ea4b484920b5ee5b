"""What a model reads: text tokens, images and audio, in order.

Knows how long each piece is in tokens. Knows nothing of tokenizers (it is handed one), of losses
or of how any of it travels.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol, TypeAlias

from pydantic import (
    ConfigDict,
    Discriminator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    field_serializer,
    field_validator,
)
from pydantic_core import CoreSchema, core_schema

from tinkex.types.strictness import Strict, exported
from tinkex.types.tokens import MAX_TOKEN_ID, Int32Array, keep_tokens, token_ids


class _TokensSchema:
    """Checks tokens with one numpy pass instead of one pydantic step per token."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            keep_tokens,
            serialization=core_schema.plain_serializer_function_ser_schema(list),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        token = {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}
        return {"type": "array", "items": token}


class _Chunk(Strict):
    """One piece of an input. Those of the official package will do: they have the same parts."""

    model_config = ConfigDict(from_attributes=True)


@exported
class EncodedTextChunk(_Chunk):
    """A run of token ids. A list or tuple is kept as given; a numpy array stays an array."""

    tokens: Annotated[Sequence[int], _TokensSchema]
    type: Literal["encoded_text"] = "encoded_text"

    @property
    def length(self) -> int:
        """Tokens this takes in the model's context."""
        return len(self.tokens)

    @property
    def ids(self) -> Int32Array:
        """The tokens as one int32 array (an addition of tinkex)."""
        return token_ids(self.tokens)


def _decoded(value: object, field: str) -> object:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{field} must be bytes or base64 text: {error}") from error


def _declared_length(chunk: str, expected_tokens: int | None) -> int:
    if expected_tokens is None:
        raise ValueError(f"{chunk} has no length: set expected_tokens to know it before sending")
    return expected_tokens


class ImageChunk(_Chunk):
    """An encoded image, sent whole. `expected_tokens` is a hint that gives it a length."""

    data: bytes
    format: Literal["png", "jpeg"]
    expected_tokens: int | None = None
    type: Literal["image"] = "image"

    @field_validator("data", mode="before")
    @classmethod
    def _from_base64(cls, value: object) -> object:
        return _decoded(value, "data")

    @field_serializer("data")
    def _to_base64(self, value: bytes) -> str:
        return base64.b64encode(value).decode("ascii")

    @property
    def length(self) -> int:
        """Tokens this takes in the model's context."""
        return _declared_length("ImageChunk", self.expected_tokens)


class ImageAssetPointerChunk(_Chunk):
    """An image the server already has. It can be sampled from, not trained on."""

    format: Literal["png", "jpeg"]
    location: str
    expected_tokens: int | None = None
    type: Literal["image_asset_pointer"] = "image_asset_pointer"

    @property
    def length(self) -> int:
        """Tokens this takes in the model's context."""
        return _declared_length("ImageAssetPointerChunk", self.expected_tokens)


@exported
class DmelChunk(_Chunk):
    """Audio as a serialised tensor of discretised mel frames; one token per frame."""

    dmel: bytes
    type: Literal["dmel"] = "dmel"

    @field_validator("dmel", mode="before")
    @classmethod
    def _from_base64(cls, value: object) -> object:
        return _decoded(value, "dmel")

    @field_serializer("dmel")
    def _to_base64(self, value: bytes) -> str:
        return base64.b64encode(value).decode("ascii")

    @property
    def length(self) -> int:
        """Tokens this takes in the model's context."""
        return _first_dimension(self.dmel)


_TELLING_KEYS = {
    "tokens": "encoded_text",
    "dmel": "dmel",
    "location": "image_asset_pointer",
    "data": "image",
}


def _chunk_type(value: object) -> str | None:
    """The tag of a chunk; one left out is read from the key only that chunk has."""
    if isinstance(value, dict):
        tag = value.get("type")
        if tag is not None:
            return tag if isinstance(tag, str) else None
        return next((tag for key, tag in _TELLING_KEYS.items() if key in value), None)
    return getattr(value, "type", None)


ModelInputChunk: TypeAlias = Annotated[
    Annotated[EncodedTextChunk, Tag("encoded_text")]
    | Annotated[ImageAssetPointerChunk, Tag("image_asset_pointer")]
    | Annotated[ImageChunk, Tag("image")]
    | Annotated[DmelChunk, Tag("dmel")],
    Discriminator(_chunk_type),
]


class _Tokenizer(Protocol):
    """Anything that turns text into ids: a `transformers` tokenizer, or ours."""

    def encode(self, text: str, /) -> Any: ...


@exported
class ModelInput(Strict):
    """A prompt or a training sequence: chunks in order. Every change makes a new value."""

    chunks: list[ModelInputChunk]

    @classmethod
    def from_ints(cls, tokens: Sequence[int]) -> "ModelInput":
        """One text chunk. A list, a tuple or a one-dimensional integer array."""
        return cls(chunks=[EncodedTextChunk(tokens=tokens)])

    @classmethod
    def from_text(cls, text: str, tokenizer: _Tokenizer) -> "ModelInput":
        """Encode `text` with `tokenizer.encode` (an addition of tinkex)."""
        if isinstance(tokenizer, str | bytes) or not hasattr(tokenizer, "encode"):
            raise TypeError(
                f"tokenizer: expected one with an encode method, got {tokenizer!r:.80}. Load it "
                "first: get_tokenizer() of a training or sampling client returns the model's own."
            )
        if not isinstance(text, str):
            raise TypeError(f"text: expected a string, got {type(text).__name__}")
        encoded = tokenizer.encode(text)
        return cls.from_ints(getattr(encoded, "ids", encoded))

    @classmethod
    def empty(cls) -> "ModelInput":
        """An input without chunks, to append to."""
        return cls(chunks=[])

    def append(self, chunk: ModelInputChunk) -> "ModelInput":
        """This input followed by `chunk`."""
        return ModelInput(chunks=[*self.chunks, chunk])

    def append_int(self, token: int) -> "ModelInput":
        """This input followed by one token, as a chunk of its own."""
        return self.append(EncodedTextChunk(tokens=[token]))

    def to_ints(self) -> list[int]:
        """All token ids in order; ValueError when some chunk is not text."""
        tokens: list[int] = []
        for position, chunk in enumerate(self.chunks):
            if not isinstance(chunk, EncodedTextChunk):
                raise ValueError(
                    f"to_ints needs text only; chunks[{position}] is a {type(chunk).__name__}"
                )
            tokens.extend(chunk.tokens)
        return tokens

    @property
    def length(self) -> int:
        """Length in tokens; ValueError when an image does not say how long it is."""
        return sum(chunk.length for chunk in self.chunks)


_MARKER = 254
_LAST_DTYPE = 7


def _first_dimension(container: bytes) -> int:
    """How many frames a serialised audio tensor holds, read from its header: an optional marker
    byte, one dtype byte, a varint rank, that many varint sizes. ValueError when the header is
    damaged or the tensor is a scalar."""
    if not container:
        raise ValueError("dmel is empty: expected a serialised tensor")
    position = 1 if container[0] == _MARKER else 0
    if position >= len(container):
        raise ValueError("dmel header is truncated")
    if container[position] > _LAST_DTYPE:
        raise ValueError(f"dmel has unknown dtype byte {container[position]}")
    rank, position = _varint(container, position + 1)
    if rank == 0:
        raise ValueError("dmel holds a scalar: it has no dimension 0 to take a length from")
    return _varint(container, position)[0]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("dmel header is truncated")
