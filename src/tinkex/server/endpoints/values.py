"""Values that several of these APIs have, each within its limits."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tinkex.types.tokens import MAX_TOKEN_ID

TOKEN_LIMIT = MAX_TOKEN_ID
MESSAGES_LIMIT = 10_000
TOOLS_LIMIT = 512
TEXT_ONLY = "the served models read text only"

Token = Annotated[int, Field(ge=0, le=TOKEN_LIMIT)]
StopText = Annotated[str, Field(min_length=1, max_length=1024)]
StopTexts = Annotated[list[StopText], Field(max_length=64)]
Chance = Annotated[float, Field(gt=0, le=1)]
ModelName = Annotated[str, Field(min_length=1, max_length=4096)]
ToolName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\s<>\"]+$")]
