"""Promises of signed links."""

from __future__ import annotations

import stat
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest

from tinkex.server.checkpoints.signing import SignatureRefused, Signer

PATH = "/api/v1/files/s1:train:0/external_weights/final/adapter model.safetensors"


@pytest.fixture
def signer() -> Signer:
    return Signer(b"k" * 32)


def opened(link: str) -> tuple[str, dict[str, str]]:
    parts = urlsplit(link)
    return unquote(parts.path), dict(parse_qsl(parts.query))


def test_a_link_works_until_it_expires(signer: Signer) -> None:
    path, query = opened(signer.link(PATH, "alice", 1000))
    assert path == PATH
    assert signer.check(path, query, now=999.9) == "alice"
    with pytest.raises(SignatureRefused, match="expired"):
        signer.check(path, query, now=1000)


@pytest.mark.parametrize(
    ("field", "value"),
    [("expires", "9999"), ("tenant", "bob"), ("signature", "0" * 64), ("signature", "é")],
)
def test_no_part_of_a_link_can_be_changed(signer: Signer, field: str, value: str) -> None:
    path, query = opened(signer.link(PATH, "alice", 1000))
    with pytest.raises(SignatureRefused, match="changed"):
        signer.check(path, {**query, field: value}, now=1)


def test_a_link_opens_its_own_path_only(signer: Signer) -> None:
    _, query = opened(signer.link(PATH, "alice", 1000))
    for other in (PATH + "x", PATH[:-1], PATH.replace("final", "other"), "/"):
        with pytest.raises(SignatureRefused):
            signer.check(other, query, now=1)


def test_parts_cannot_be_shifted_into_each_other(signer: Signer) -> None:
    _, query = opened(signer.link("/a", "b1", 23))
    with pytest.raises(SignatureRefused):
        signer.check("/ab", {**query, "tenant": "1"}, now=1)
    with pytest.raises(SignatureRefused):
        signer.check("/a", {**query, "tenant": "b", "expires": "123"}, now=1)


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"expires": "-5"},
        {"expires": "1e9", "signature": "x"},
        {"expires": "9" * 5000, "signature": "x"},
    ],
)
def test_an_unsigned_path_is_refused(signer: Signer, query: dict[str, str]) -> None:
    with pytest.raises(SignatureRefused, match="not signed"):
        signer.check(PATH, query, now=1)


@pytest.mark.parametrize("torn", [b"", b"half"])
def test_a_key_that_was_never_wholly_written_is_made_anew(tmp_path: Path, torn: bytes) -> None:
    """A disk that was full at the first start kept a server from ever starting again."""
    file = tmp_path / "signing.key"
    file.write_bytes(torn)
    link = Signer.from_file(file).link(PATH, "alice", 10)
    assert Signer.from_file(file).check(*opened(link), now=1) == "alice"
    assert [each.name for each in tmp_path.iterdir()] == ["signing.key"]


def test_the_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "signing.key"
    link = Signer.from_file(file).link(PATH, "alice", 10)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Signer.from_file(file).check(*opened(link), now=1) == "alice"
    with pytest.raises(SignatureRefused):
        Signer(b"z" * 32).check(*opened(link), now=1)
