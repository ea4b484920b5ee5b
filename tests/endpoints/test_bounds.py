"""Answers without a limit of their own, with more likeliest tokens than can be told."""

from __future__ import annotations

import pytest

from tinkex.engine.messages import SamplingParams
from tinkex.server.endpoints.conversations import Conversation, bounded
from tinkex.server.endpoints.draws import MOST_LOGPROBS
from tinkex.server.endpoints.errors import Unfit

LONG_CONTEXT = 262_144


def conversation(max_tokens: int | None, n: int = 1) -> Conversation:
    params = SamplingParams(max_tokens=max_tokens)
    return Conversation(model="acme/long", messages=[], size=0, params=params, n=n, top_logprobs=20)


def test_twenty_logprobs_without_a_limit_are_served_whatever_the_context() -> None:
    limited = bounded(conversation(None), LONG_CONTEXT).max_tokens
    assert limited is not None
    assert 200_000 < limited == MOST_LOGPROBS // 20
    assert bounded(conversation(None), 8192).max_tokens is None


def test_a_limit_that_was_given_is_kept_or_refused_but_never_changed() -> None:
    assert bounded(conversation(999), LONG_CONTEXT).max_tokens == 999
    with pytest.raises(Unfit, match="top_logprobs"):
        bounded(conversation(LONG_CONTEXT), LONG_CONTEXT)


def test_no_answer_becomes_so_short_that_its_reader_would_wonder() -> None:
    with pytest.raises(Unfit, match="top_logprobs"):
        bounded(conversation(None, n=1024), LONG_CONTEXT)
