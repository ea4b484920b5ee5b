"""A sequence ends at a stop id, at a stop text however it is cut into tokens, or at its length."""

from __future__ import annotations

import random

import pytest

from support.sentencepiece import KINDS, build_sentencepiece
from tinkex.engine.builtin.tiny_tokenizer import EOS_ID, build_tokenizer
from tinkex.engine.errors import UserError
from tinkex.engine.sampling.stopping import Stopping

TOKENIZER = build_tokenizer()


def length_at_stop(stopping: Stopping, tokens: list[int]) -> tuple[int, str | None]:
    for count in range(1, len(tokens) + 1):
        reason = stopping.reason(tokens[:count])
        if reason is not None:
            return count, reason
    return len(tokens), None


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text).ids)


def test_none_means_the_models_own_end() -> None:
    stopping = Stopping(None, (EOS_ID,), 10, TOKENIZER)
    assert length_at_stop(stopping, [1, 2, EOS_ID, 3]) == (3, "stop")


def test_an_empty_list_never_stops_early() -> None:
    stopping = Stopping((), (EOS_ID,), 4, TOKENIZER)
    assert length_at_stop(stopping, [EOS_ID] * 6) == (4, "length")


def test_given_ids_replace_the_models_own_end() -> None:
    stopping = Stopping((7,), (EOS_ID,), 10, TOKENIZER)
    assert length_at_stop(stopping, [EOS_ID, 7, 1]) == (2, "stop")


@pytest.mark.parametrize("stop", ["\n\nUser:", "é", "😀!", "<|im_end|>", "x"])
def test_a_text_stops_at_the_token_that_completes_it(stop: str) -> None:
    before, after = ids("some words, ünïcode 😃 and more "), ids("after")
    stopping = Stopping((stop, "never this"), (), 500, TOKENIZER)
    found = length_at_stop(stopping, before + ids(stop) + after)
    assert found == (len(before + ids(stop)), "stop")


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_found_among_the_bytes_of_sentencepiece(kind: str) -> None:
    """Its decoder gives up a whole row of bytes that is cut within a character."""
    tokenizer, dice = build_sentencepiece(kind), random.Random(5)
    for _ in range(100):
        ids = tokenizer.encode("".join(dice.choices(("😀", "日本", "€", "the "), k=12))).ids
        whole = tokenizer.decode(ids)
        start = dice.randrange(len(whole))
        stop = whole[start : start + dice.choice((1, 2, 4))]
        found = next(n for n in range(1, len(ids) + 1) if stop in tokenizer.decode(ids[:n]))
        assert length_at_stop(Stopping((stop,), (), 500, tokenizer), ids) == (found, "stop")


def test_looking_for_a_text_takes_no_longer_the_longer_the_sample_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = "never this " * 90
    stopping = Stopping((stop,), (), 50_000, TOKENIZER)
    decoded: list[int] = []
    decode = stopping._decode

    def counted(tokens: list[int]) -> str:
        decoded.append(len(tokens))
        return decode(tokens)

    monkeypatch.setattr(stopping, "_decode", counted)
    sequence = ids("some words, and so on and on. " * 1000)
    assert stopping.reason(sequence) is None
    assert sum(decoded) < 5 * len(stop)
    before = [*sequence, *ids(stop)[:-1]]
    assert stopping.reason(before) is None
    assert stopping.reason([*before, ids(stop)[-1]]) == "stop"


def test_a_stop_wins_over_the_length_at_the_same_token() -> None:
    assert length_at_stop(Stopping((9,), (), 2, None), [1, 9]) == (2, "stop")


def test_texts_without_a_tokenizer_and_empty_texts_are_refused() -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        Stopping(("a",), (), 5, None)
    with pytest.raises(UserError, match="empty string"):
        Stopping(("",), (), 5, TOKENIZER)
