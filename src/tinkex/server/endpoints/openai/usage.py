"""What a request used, in the words of the OpenAI-style APIs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinkex.engine.messages import SampleResult


def openai_usage(
    prompts: Sequence[Sequence[int]], results: Sequence[SampleResult]
) -> dict[str, Any]:
    """Every drawn token counts, the one that stopped a sequence too."""
    read, drawn = sum(map(len, prompts)), drawn_tokens(results)
    return {
        "prompt_tokens": read,
        "completion_tokens": drawn,
        "total_tokens": read + drawn,
        "prompt_tokens_details": {"cached_tokens": cached_tokens(results)},
    }


def drawn_tokens(results: Sequence[SampleResult]) -> int:
    return sum(len(sequence.tokens) for result in results for sequence in result.sequences)


def cached_tokens(results: Sequence[SampleResult]) -> int:
    return sum(result.cached_tokens for result in results)
