"""Secrets do not leave through text, headers or nested values."""

import pytest

from tinkex.client.redaction import REDACTED, redact, redact_headers, redact_text

JWT = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJtZSJ9.c2ln"


@pytest.mark.parametrize(
    "secret", ["tml-abc_DEF-123", JWT, "user:pa55", "X-Amz-Signature=deadbeef", "sig=abc%2F"]
)
def test_secrets_are_removed_from_text(secret: str) -> None:
    text = {
        "user:pa55": "http://user:pa55@proxy:80/",
        "X-Amz-Signature=deadbeef": "https://s/x?a=1&X-Amz-Signature=deadbeef",
        "sig=abc%2F": "https://s/x?sig=abc%2F&b=2",
    }.get(secret, f"the key {secret} was refused")
    assert secret not in redact_text(text)
    assert REDACTED in redact_text(text)


def test_ordinary_text_stays() -> None:
    text = "POST http://host:80/api/v1/asample tinker://a:train:0/weights/x?limit=3"
    assert redact_text(text) == text


def test_headers_lose_their_secrets_whatever_their_case() -> None:
    shown = redact_headers({"X-API-KEY": "k", "CF-Access-Client-Secret": "s", "Accept": "a"})
    assert shown == {"X-API-KEY": REDACTED, "CF-Access-Client-Secret": REDACTED, "Accept": "a"}


def test_values_are_scrubbed_at_any_depth() -> None:
    value = {"a": ["tml-x1", {"x-api-key": "k"}], "b": 3, "c": ("eyJa.b.c",)}
    assert redact(value) == {"a": [REDACTED, {"x-api-key": REDACTED}], "b": 3, "c": [REDACTED]}
