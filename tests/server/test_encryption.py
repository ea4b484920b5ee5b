"""Promises of encrypted exports."""

from __future__ import annotations

from pathlib import Path

import pyrage
import pytest

from tinkex.server.checkpoints.encryption import BadRecipient, encrypt_folder, parse_recipients


def test_each_recipient_can_read_every_file_and_nothing_stays_in_clear(tmp_path: Path) -> None:
    alice, bob = pyrage.x25519.Identity.generate(), pyrage.x25519.Identity.generate()
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.bin").write_bytes(b"weights" * 1000)
    (tmp_path / "sub" / "b.json").write_bytes(b"{}")
    encrypt_folder(tmp_path, [str(alice.to_public()), str(bob.to_public())])
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    assert names == {"a.bin.age", "sub/b.json.age"}
    sealed = (tmp_path / "a.bin.age").read_bytes()
    assert b"weightsweights" not in sealed
    for identity in (alice, bob):
        assert pyrage.decrypt(sealed, [identity]) == b"weights" * 1000
    with pytest.raises(pyrage.DecryptError):
        pyrage.decrypt(sealed, [pyrage.x25519.Identity.generate()])


def test_a_bad_recipient_is_named_by_its_place_and_nothing_is_written(tmp_path: Path) -> None:
    good = str(pyrage.x25519.Identity.generate().to_public())
    (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(BadRecipient, match=r"recipients\[1\] \(9 characters\)"):
        encrypt_folder(tmp_path, [good, "age1wrong"])
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_more_than_ten_recipients_and_none_are_refused(tmp_path: Path) -> None:
    good = str(pyrage.x25519.Identity.generate().to_public())
    assert len(parse_recipients([good] * 10)) == 10
    with pytest.raises(BadRecipient, match="11 entries; the limit is 10"):
        parse_recipients([good] * 11)
    with pytest.raises(BadRecipient, match="empty"):
        encrypt_folder(tmp_path, [])


def test_a_private_key_by_mistake_is_refused_without_being_repeated(tmp_path: Path) -> None:
    secret = str(pyrage.x25519.Identity.generate())
    with pytest.raises(BadRecipient) as caught:
        parse_recipients([secret])
    assert secret not in str(caught.value)
