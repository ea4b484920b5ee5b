"""Values that several of these APIs have, each within its limits."""

from __future__ import annotations

from collections.abc import Sized
from typing import Annotated, TypeVar

from pydantic import BeforeValidator, Field

from tinkex.server.protocol.limited import FIRST_ONLY
from tinkex.types.tokens import MAX_TOKEN_ID

TOKEN_LIMIT = MAX_TOKEN_ID
MESSAGES_LIMIT = 10_000
TOOLS_LIMIT = 512
TEXT_ONLY = "the served models read text only"
MEDIA = frozenset(
    (
        "image",
        "image_url",
        "input_image",
        "audio",
        "input_audio",
        "video",
        "video_url",
        "file",
        "input_file",
        "document",
    )
)
"""What parts of messages are called, in all of these APIs, that are no text."""

T = TypeVar("T")
S = TypeVar("S", bound=Sized)

Several = Annotated[list[T], FIRST_ONLY]
"""A list of which the first wrong entry is told: a million may be wrong."""


def at_most(limit: int) -> BeforeValidator:
    """So many entries, counted before they are looked at: as for lists, a million may be wrong."""

    def check(value: S) -> S:
        if isinstance(value, Sized) and len(value) > limit:
            raise ValueError(f"has {len(value)} entries; the limit is {limit}")
        return value

    return BeforeValidator(check)


Token = Annotated[int, Field(ge=0, le=TOKEN_LIMIT)]
StopText = Annotated[str, Field(min_length=1, max_length=1024)]
StopTexts = Annotated[Several[StopText], Field(max_length=64)]
Chance = Annotated[float, Field(gt=0, le=1)]
ModelName = Annotated[str, Field(min_length=1, max_length=4096)]
ToolName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\s<>\"]+$")]
