"""The rules a checkpoint's name, path and time to live must keep. Pure; raises `Refusal`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tinkex.server.checkpoints import encryption
from tinkex.server.refusals import Refusal
from tinkex.server.storage.database.checkpoints import KINDS, Kind
from tinkex.server.storage.database.runs import RunRow
from tinkex.types.tinker_path import SCHEME, PathParts, checkpoint_path, split_tinker_path
from tinkex.wire.limits import MAX_TTL_SECONDS, MIN_TTL_SECONDS

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+@-]*")


class Save(NamedTuple):
    """What a client asked to keep, under which name and for how long."""

    run: RunRow  # whose weights they are
    kind: Kind  # for training or for a sampler
    name: str  # empty: the server makes one
    ttl_seconds: int | None = None  # None: kept until deleted
    overwrite: bool = False  # of the same name, if there is one
    user_metadata: Mapping[str, Any] | None = None  # the client's own notes
    recipients: tuple[str, ...] = ()  # public keys of its readers; empty: not encrypted

    @property
    def path(self) -> str:
        return checkpoint_path(self.run.model_id, self.kind, self.name)


def check_name(name: str, limit: int) -> None:
    """Refuse names that could leave their folder or be mistyped."""
    if len(name) > limit or not _NAME.fullmatch(name):
        raise Refusal(
            f"checkpoint name of {len(name)} characters is not usable: use 1 to {limit} letters, "
            "digits, '_', '.', '=', '+', '@' or '-', starting with a letter, digit or '_'"
        )


def check_ttl(ttl_seconds: int | None) -> None:
    if ttl_seconds is not None and not MIN_TTL_SECONDS <= ttl_seconds <= MAX_TTL_SECONDS:
        raise Refusal(
            f"ttl_seconds is {ttl_seconds}: give {MIN_TTL_SECONDS} (one hour) to {MAX_TTL_SECONDS} "
            "(ten years), or null to keep it for ever"
        )


def parse_path(path: str) -> PathParts:
    """(run, kind, name) of a checkpoint path; refuses anything else."""
    try:
        if path.split() == [path]:
            return split_tinker_path(path)
    except ValueError:
        pass
    raise Refusal(
        f"checkpoint path of {len(path)} characters is not {SCHEME}<run>/<kind>/<name> "
        f"with kind {', '.join(KINDS)}"
    )


def check_recipients(recipients: tuple[str, ...]) -> None:
    """Refuse what is not a public key, or too many."""
    try:
        encryption.parse_recipients(recipients)
    except encryption.BadRecipient as error:
        raise Refusal(str(error)) from error
