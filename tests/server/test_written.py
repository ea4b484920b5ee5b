"""Long answers: the same JSON, and how much of it there is to tell."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tinkex.engine.messages import SampleResult, Sequence, TopK
from tinkex.server.endpoints.draws import Best, News, cells
from tinkex.server.protocol.written import written

ROW = {"token": "é", "top": [{"x": 1.5}, None]}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"a": [], "b": {}, "c": None, "d": True, "e": "\u2028"},
        {"tokens": list(range(1000))},
        {"choices": [{"logprobs": {"content": [ROW] * 130}, "deep": [[[[[[[1]]]]]]]}] * 65},
    ],
)
def test_an_answer_in_pieces_is_the_same_text(values: dict[str, Any]) -> None:
    assert written(values).decode() == json.dumps(values, separators=(",", ":"))


def test_numbers_that_json_has_not_are_never_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        written({"x": [float("nan")]})


def test_logprobs_count_when_it_is_decided_where_an_answer_is_written() -> None:
    """An echoed prompt with all its logprobs was written on the event loop: nobody else was served
    for a minute."""
    table = TopK(np.zeros((4, 250), np.int32), np.zeros((4, 250), np.float32))
    nothing, four = np.zeros(0, np.int32), np.zeros(4, np.float32)
    drawn = Sequence(nothing, nothing.astype(np.float32), "length")
    assert cells([SampleResult((drawn,), four, table)]) > 1000
    assert cells([SampleResult((drawn,))]) < 100


def test_what_was_gathered_for_a_slow_client_is_told_in_parts() -> None:
    best: list[Best] = [[(token, -1.0) for token in range(1000)]] * 10
    whole = News(1, 2, list(range(10)), [0.0] * 10, best)
    parts = list(whole.parts())
    assert [len(part.tokens) for part in parts] == [4, 4, 2]
    assert [token for part in parts for token in part.tokens] == whole.tokens
    assert [len(part.best) for part in parts] == [4, 4, 2]
    assert all((part.prompt, part.index) == (1, 2) for part in parts)
    plain = News(0, 0, list(range(5000)), [0.0] * 5000)
    assert list(plain.parts()) == [plain]
