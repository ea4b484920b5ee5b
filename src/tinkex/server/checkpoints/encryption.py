"""Exports that only their recipients can read: age encryption of files.

Knows files and recipients' public keys; the private keys never come here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinkex.wire.limits import MAX_AGE_RECIPIENTS

SUFFIX = ".age"


class BadRecipient(ValueError):
    """A recipient is not an age or SSH public key. The message names its place in the list."""


def parse_recipients(texts: Sequence[str]) -> list[Any]:
    """The recipients as `pyrage` objects: `age1…` keys, or `ssh-ed25519`/`ssh-rsa` lines."""
    if len(texts) > MAX_AGE_RECIPIENTS:
        raise BadRecipient(
            f"age_encryption_recipients has {len(texts)} entries; the limit is {MAX_AGE_RECIPIENTS}"
        )
    return [_parse(index, text) for index, text in enumerate(texts)]


def encrypt_folder(folder: Path, texts: Sequence[str]) -> None:
    """Replace every file of `folder` by its encryption, named like it with `.age` added."""
    from pyrage import encrypt_file

    recipients = parse_recipients(texts)
    if not recipients:
        raise BadRecipient("age_encryption_recipients is empty: give at least one recipient")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        encrypt_file(str(path), str(path.with_name(path.name + SUFFIX)), recipients)
        path.unlink()


def _parse(index: int, text: str) -> Any:
    from pyrage import RecipientError, ssh, x25519

    make = ssh.Recipient.from_str if text.startswith("ssh-") else x25519.Recipient.from_str
    try:
        return make(text.strip())
    except RecipientError as error:
        raise BadRecipient(
            f"age_encryption_recipients[{index}] ({len(text)} characters) is not an age or SSH "
            "public key; it should look like age1…"
        ) from error
