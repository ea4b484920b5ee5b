"""The two kinds of pydantic value in the API, and how a class gets its public name.

Requests are `Strict`: a field nobody knows is a mistake and is refused. Responses are `Lenient`: a
newer server may add fields, which are ignored. Both are frozen, and both print as they are written.
A validator is built when its class is first used: most programs use a few of these classes, and
building all of them is a twentieth of what a server's import takes.
This module knows nothing of any particular field.
"""

import threading
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

PUBLIC_MODULE = "tinkex"

_Class = TypeVar("_Class", bound=type)
_V = TypeVar("_V", bound=BaseModel)
_building = threading.RLock()
"""Held while a validator is built. Threads may use a class for the first time at once, which not
every pydantic that we run with is made for; a class may build another, so the lock is reentrant."""


class _Value(BaseModel):
    """What both kinds have in common."""

    model_config = ConfigDict(frozen=True, protected_namespaces=(), defer_build=True)

    @classmethod
    def model_rebuild(cls, **options: Any) -> bool | None:
        """As pydantic's, one thread at a time."""
        with _building:
            return super().model_rebuild(**options)

    def __str__(self) -> str:
        return repr(self)


class Strict(_Value):
    """A value the user makes: frozen, unknown fields refused."""

    model_config = ConfigDict(extra="forbid")


class Lenient(_Value):
    """A value the server makes: frozen, unknown fields ignored."""

    model_config = ConfigDict(extra="ignore")


def defaults(cls: type[_V]) -> _V:
    """What `cls()` is, without building its validator: for values that modules have."""
    return cls.model_construct()


def exported(cls: _Class) -> _Class:
    """Show `cls` as `tinkex.<name>`: in reprs, in pickles and in error messages."""
    cls.__module__ = PUBLIC_MODULE
    return cls
