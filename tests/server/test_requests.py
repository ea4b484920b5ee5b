"""Requests are read as their types declare them, within limits, and nothing in them is ignored."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.server.protocol import requests
from tinkex.server.protocol.json_body import MOST_PARTS, MOST_VALUES, parse
from tinkex.server.protocol.limited import REQUIRED, at_most, between, limited, otherwise
from tinkex.server.protocol.reading import Reader
from tinkex.server.refusals import Refusal, TooLarge
from tinkex.types.strictness import Strict


class Inner(Strict):
    rank: int
    name: str = "x"


class Asked(Strict):
    """A request like those of the protocol."""

    number: int = 5
    inner: Inner | None = None
    several: list[Inner] = []  # noqa: RUF012 - pydantic copies it
    anything: dict[str, Any] | None = None
    text: str | None = None
    rate: float = 1.0


READER = Reader(limited(Asked, number=between(1, 10), text=at_most(8)))


def refused(values: dict[str, Any], reader: Reader[Any] = READER) -> str:
    with pytest.raises(Refusal) as error:
        reader.read(values)
    return error.value.detail


def test_a_type_is_made_when_its_first_request_comes() -> None:
    """All of them at once would be a fifth of what importing a server takes."""
    made: list[type[Asked]] = []

    def make() -> type[Asked]:
        made.append(Asked)
        return Asked

    reader = Reader(make)
    assert made == []
    assert reader.read({"number": 3}).number == 3
    assert reader.read({}).number == 5
    assert made == [Asked]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (0, "number is 0; it must be at least 1"),
        (11, "number is 11; it must be at most 10"),
        (10**50, "number is a number of 51 digits; it must be at most 10"),
        (5.0, "number must be an integer, not a number"),
        ("5", "number must be an integer, not a string"),
        (True, "number must be an integer, not a boolean"),
        ([5], "number must be an integer, not a list"),
    ],
)
def test_integers_are_integers_within_bounds(value: Any, why: str) -> None:
    assert READER.read({"number": 5}).number == 5
    assert refused({"number": value}) == why


def test_null_is_absent_and_absence_is_named() -> None:
    read = READER.read({"number": None, "inner": None, "several": None, "unheard_of": None})
    assert read == READER.read({})
    assert refused({"inner": {"rank": None}}) == "inner.rank is required"
    assert READER.read({"anything": {"a": None}}).anything == {"a": None}


def test_null_for_a_number_is_refused_since_clients_write_nan_so() -> None:
    """The official client does: a learning rate of NaN would become the default."""
    why = "is null, as NaN and infinity are written: give a finite number, or leave it out"
    assert refused({"rate": None}) == f"rate {why}"
    step = {"model_id": "a", "seq_id": 1, "adam_params": {"learning_rate": None}}
    assert refused(step, requests.OPTIM_STEP) == f"adam_params.learning_rate {why}"
    assert READER.schema()["properties"]["rate"] == {"type": "number", "default": 1.0}


def test_what_the_type_does_not_have_is_refused_by_its_full_name() -> None:
    assert refused({"inner": {"rank": 1, "extra": 2}}) == (
        "inner.extra is not a field of this request; known are: name, rank"
    )
    assert refused({"several": [{"rank": 1}, {"rank": 2, "extra": 3}]}).startswith(
        "several[1].extra is not a field"
    )
    assert refused({"s" * 10_000: 1}).startswith("s" * 128 + " is not a field")


def test_long_values_are_refused_by_size_and_never_quoted() -> None:
    secret = "s3cret" * 1000
    for values in ({"text": secret}, {"number": secret}, {"anything": {"a": secret * 9}}):
        assert "s3cret" not in refused(values)
    assert refused({"text": secret}) == "text has 6000 characters; the limit is 8"


def test_a_million_wrong_entries_are_one_error() -> None:
    assert refused({"several": [1] * 90_000}) == "several[0] must be an object, not a number"
    many = {f"field {number}": 1 for number in range(90_000)}
    assert refused(many).startswith("field 0 is not a field")


def test_a_number_too_large_for_a_double_is_refused_by_name() -> None:
    assert refused({"rate": 10**400}) == "rate is a number of 401 digits, too large for a number"


def test_a_server_may_require_what_the_type_does_not_and_do_without_what_it_asks_for() -> None:
    reader = Reader(limited(Asked, text=REQUIRED))
    assert refused({}, reader) == "text is required"
    assert Reader(limited(Inner, rank=otherwise(32))).read({}).rank == 32


def test_a_field_may_be_kept_out_with_the_reason_why() -> None:
    reader = Reader(limited(Asked), without={"text": "belongs elsewhere"})
    assert refused({"text": "x"}, reader) == "text belongs elsewhere"
    assert "text" not in reader.schema()["properties"]


def test_a_limit_on_a_field_that_is_not_there_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="no_such"):
        limited(Asked, no_such=at_most(1))


def test_what_is_read_is_described() -> None:
    properties = READER.schema()["properties"]
    bounded = {"type": "integer", "minimum": 1, "maximum": 10}
    assert properties["number"] == {"anyOf": [bounded, {"type": "null"}], "default": 5}
    assert properties["text"]["anyOf"][0] == {"type": "string", "maxLength": 8}
    assert READER.schema()["additionalProperties"] == {"type": "null"}
    assert "$ref" not in json.dumps(READER.schema())


# ---- bodies


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_an_object_or_a_refusal(body: bytes) -> None:
    with contextlib.suppress(Refusal):
        parse(body)


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
        parse(body)


def test_a_number_of_thousands_of_digits_is_refused_without_advice_for_the_server() -> None:
    with pytest.raises(Refusal, match=r"limit \(4300 digits\).* value has 5000 digits$"):
        parse(b'{"x":' + b"9" * 5000 + b"}")


def test_whole_characters_written_as_escapes_are_read() -> None:
    assert parse(rb'{"x":"\ud83d\ude00\\ud800"}') == {"x": "😀\\ud800"}


@pytest.mark.parametrize(
    "body",
    [
        b'{"x":[' + b"[]," * MOST_PARTS + b"[]]}",
        b'{"x":[' + b"{}," * MOST_PARTS + b"{}]}",
        b'{"x":[' + b'"",' * MOST_PARTS + b'""]}',
        b"{" + b'"a":1,' * MOST_PARTS + b'"a":1}',
        b'{"x":[' + b"1," * (MOST_VALUES + 1) + b"1]}",
    ],
)
def test_a_body_of_very_many_small_parts_is_refused_before_it_is_read(body: bytes) -> None:
    """While JSON is read no other tenant's request is: 16 MiB of empty lists took 5 s."""
    with pytest.raises(TooLarge, match="send less at once"):
        parse(body)


@pytest.mark.parametrize("text", [',[{"', r"\\", r"\\,[{\""])
def test_what_lies_in_a_text_is_no_part_of_its_body(text: str) -> None:
    long = text * MOST_PARTS
    assert parse(json.dumps({"x": long, "y": [long]}).encode()) == {"x": long, "y": [long]}


# ---- the protocol's own


def test_a_time_needs_its_offset() -> None:
    cursor = {"last_created_at": "2026-01-31T12:00:00", "last_session_id": "s"}
    assert refused({"cursor": cursor}, requests.SEARCH_SESSIONS) == (
        "cursor.last_created_at needs an offset from UTC"
    )


def test_an_owner_that_does_not_say_what_it_is_is_refused() -> None:
    assert refused({"owner": {}}, requests.SEARCH_SESSIONS) == "owner.type is required"
    assert refused({"owner": {"type": "all"}}, requests.SEARCH_SESSIONS) == (
        "owner.type must be one of own, accessible, user"
    )
