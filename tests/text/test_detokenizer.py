"""Text of tokens as they come: whole characters, nothing of a stop string."""

from __future__ import annotations

import itertools
import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.sentencepiece import KINDS, build_sentencepiece
from tinkex.server.engines.model_sources import default_cache, resolve
from tinkex.text.detokenizer import Detokenizer
from tinkex.text.model_text import ModelText
from tinkex.text.stop_strings import StopStrings
from tinkex.text.token_bytes import TokenBytes

TEXT = "Grüße 😀🏽 日本語 “x”\n ab"


@pytest.fixture(scope="module", params=["tinkex/tiny-llama", "HuggingFaceTB/SmolLM2-135M-Instruct"])
def model(request: pytest.FixtureRequest) -> ModelText:
    source = resolve(request.param, default_cache(os.environ), os.environ)
    return ModelText(source.folder, source.name)


def test_parts_make_the_text_and_each_is_whole(model: ModelText) -> None:
    voice = model.detokenizer()
    parts = [voice.add([token]) for token in model.encode(TEXT)] + [voice.end()]
    assert "".join(parts) == TEXT
    assert not any("\ufffd" in part for part in parts)


def test_what_never_becomes_a_character_comes_at_the_end(model: ModelText) -> None:
    tokens = model.encode("x日")[:-1]
    voice = model.detokenizer()
    held = "".join(voice.add([token]) for token in tokens)
    assert held == "x"
    assert set(voice.end()) == {"\ufffd"}


def test_bytes_that_are_no_text_do_not_hold_a_stream_up_for_ever(model: ModelText) -> None:
    half = model.encode("日")[-1]
    voice = model.detokenizer()
    said = "".join(voice.add([half]) for _ in range(500))
    assert 490 <= len(said) <= 500


def test_special_tokens_are_hidden_unless_asked_for(model: ModelText) -> None:
    tokens = model.encode("a<|im_end|>b")
    assert model.detokenizer().add(tokens) == "ab"
    assert model.detokenizer(show_special=True).add(tokens) == "a<|im_end|>b"


def test_tokens_spell_the_texts_bytes(model: ModelText) -> None:
    spelt = b"".join(model.pieces[token] for token in model.encode(TEXT))
    assert spelt.decode() == TEXT
    assert model.pieces[10**7] == b""


PARTS = ("the ", "  ", "😀", "👍🏽", "🇩🇪", "€", "日本", "é", "x")


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_sentencepiece_make_the_text_however_they_are_cut(kind: str) -> None:
    """Its decoder gives up a whole row of bytes for one that is missing."""
    backend, dice = build_sentencepiece(kind), random.Random(3)
    raw = TokenBytes(backend).raw
    for _ in range(300):
        ids = backend.encode("".join(dice.choices(PARTS, k=dice.randint(1, 14)))).ids
        voice, said, start = Detokenizer(backend, raw=raw), "", 0
        while start < len(ids):
            stop = start + dice.choice((1, 1, 2, 5))
            said, start = said + voice.add(ids[start:stop]), stop
        said += voice.end()
        assert said == backend.decode(ids)


@pytest.mark.parametrize("size", [1, 2, 20])
def test_a_byte_of_sentencepiece_that_is_no_character_spoils_no_other(size: int) -> None:
    backend = build_sentencepiece("stripped")
    number = backend.token_to_id
    bytes_of = {text: backend.encode(text).ids[1:] for text in ("😀", "€", "x")}
    ids = [number("<0x41>"), number("<0xE6>"), *bytes_of["€"], number("<0x8D>"), *bytes_of["😀"]]
    ids += [number("<0xE2>"), *bytes_of["x"], number("<0xF0>"), number("<0x9F>")]
    voice = Detokenizer(backend, raw=TokenBytes(backend).raw)
    parts = [voice.add(ids[start : start + size]) for start in range(0, len(ids), size)]
    assert "".join([*parts, voice.end()]) == "A\ufffd€\ufffd😀\ufffdx\ufffd"


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_goes_on_with_what_it_comes_after(kind: str) -> None:
    backend = build_sentencepiece(kind)
    raw = TokenBytes(backend).raw
    for before, after in (("hello", " the world"), ("日", "本 x"), ("x ", " x"), ("", "x")):
        begun = backend.encode(before).ids
        ids = backend.encode(before + after).ids
        assert ids[: len(begun)] == begun
        voice = Detokenizer(backend, raw=raw, after=begun)
        rest = "".join([*(voice.add([token]) for token in ids[len(begun) :]), voice.end()])
        assert backend.decode(begun) + rest == before + after


@given(
    st.text("ab", max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=3), max_size=3),
    st.data(),
)
def test_text_ends_before_the_first_stop_string_however_it_is_cut(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    """The first that is whole: what comes after it cannot make an earlier one of it."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    gate = StopStrings(stops)
    said = "".join(gate.add(text[a:b]) for a, b in itertools.pairwise([0, *cuts, len(text)]))
    said += gate.end()
    heard = next((text[:cut] for cut in cuts if any(stop in text[:cut] for stop in stops)), text)
    places = [heard.index(stop) for stop in stops if stop in heard]
    assert said == (heard[: min(places)] if places else text)
