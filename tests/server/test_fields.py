"""Fields are read by kind and bound, and none is ignored."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.server.protocol.fields import Fields
from tinkex.server.refusals import Refusal


@pytest.mark.parametrize(
    ("value", "ok"), [(5, True), (0, False), (11, False), (5.0, False), ("5", False), (True, False)]
)
def test_integers_are_integers_within_bounds(value: Any, ok: bool) -> None:
    fields = Fields({"n": value})
    if ok:
        assert fields.integer("n", low=1, high=10) == 5
    else:
        with pytest.raises(Refusal, match=r"^n "):
            fields.integer("n", low=1, high=10)


def test_null_is_absent_and_absence_is_named() -> None:
    assert Fields({"a": None}).optional_text("a") is None
    with pytest.raises(Refusal, match="a is required"):
        Fields({"a": None}).text("a")
    assert Fields({}).flag("a", True) is True
    with pytest.raises(Refusal, match="a is required"):
        Fields({}).flag("a")


def test_what_nobody_reads_is_refused_by_its_full_name() -> None:
    fields = Fields({"outer": {"known": 1, "extra": 2}, "type": "x"})
    inner = fields.nested("outer")
    assert inner is not None
    inner.integer("known", low=0, high=9)
    with pytest.raises(Refusal, match=r"outer\.extra is not a field"):
        inner.finish()
    fields.finish()


def test_long_values_are_refused_by_size_and_never_quoted() -> None:
    secret = "s3cret" * 1000
    for read in (
        lambda fields: fields.text("x", limit=10),
        lambda fields: fields.integer("x", low=0, high=1),
        lambda fields: fields.mapping("x"),
    ):
        with pytest.raises(Refusal) as refused:
            read(Fields({"x": secret}))
        assert "s3cret" not in refused.value.detail


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_an_object_or_a_refusal(body: bytes) -> None:
    with contextlib.suppress(Refusal):
        Fields.parse(body)


@pytest.mark.parametrize(
    "body",
    [
        rb'{"x":"\ud800"}',
        rb'{"\uDFFF":1}',
        b'{"x":"\xed\xa0\x80"}',
        b'{"x":1e999}',
        b'{"x":[{"y":-1e999}]}',
        '{"x":1}'.encode("utf-16"),
    ],
)
def test_what_cannot_be_stored_or_said_again_is_no_json_here(body: bytes) -> None:
    """Half characters and numbers beyond a double: refused as they come, wherever they lie."""
    with pytest.raises(Refusal, match="the body is not JSON"):
        Fields.parse(body)


def test_whole_characters_written_as_escapes_are_read() -> None:
    assert Fields.parse(rb'{"x":"\ud83d\ude00\\ud800"}').text("x") == "😀\\ud800"


def test_a_number_too_large_for_a_double_is_refused_by_name() -> None:
    with pytest.raises(Refusal, match="x is"):
        Fields({"x": 10**400}).number("x", low=0.0)


@pytest.mark.parametrize("values", [[1, True], [1.0], ["1"], [None], [[1]], [2**70], [2**63]])
def test_lists_of_integers_hold_nothing_else(values: list[Any]) -> None:
    assert Fields({"x": [1, 2]}).integers("x", low=1, high=2, limit=2) is not None
    with pytest.raises(Refusal, match="x must hold integers"):
        Fields({"x": values}).integers("x", low=0, high=2**62, limit=9)
