"""The two kinds of pydantic value in the API, and how a class gets its public name.

Requests are `Strict`: a field nobody knows is a mistake and is refused. Responses are `Lenient`: a
newer server may add fields, which are ignored. Both are frozen, and both print as they are written.
This module knows nothing of any particular field.
"""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict

PUBLIC_MODULE = "tinkex"

_Class = TypeVar("_Class", bound=type)


class Strict(BaseModel):
    """A value the user makes: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    def __str__(self) -> str:
        return repr(self)


class Lenient(BaseModel):
    """A value the server makes: frozen, unknown fields ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    def __str__(self) -> str:
        return repr(self)


def exported(cls: _Class) -> _Class:
    """Show `cls` as `tinkex.<name>`: in reprs, in pickles and in error messages."""
    cls.__module__ = PUBLIC_MODULE
    return cls
