"""The two kinds of pydantic value in the API, how a class gets its public name, and how a value of
the official package becomes one of ours.

Requests are `Strict`: a field nobody knows is a mistake and is refused. Responses are `Lenient`: a
newer server may add fields, which are ignored. Both are frozen, and both print as they are written.
A validator is built when its class is first used: most programs use a few of these classes, and
building all of them is a twentieth of what a server's import takes.

A program may import tinkex while a library it uses, such as the public cookbook, imports tinker:
then prompts, data and parameters of both packages meet in one call.
This module knows nothing of any particular field.
"""

import inspect
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

PUBLIC_MODULE = "tinkex"
OFFICIAL_MODULE = "tinker"

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


def twin(value: object, *kinds: type) -> Any:
    """The one of `kinds` that is named like the type of `value`, when that is an official one;
    otherwise `value` itself."""
    made_by: type = type(value)
    if made_by.__module__.partition(".")[0] != OFFICIAL_MODULE:
        return value
    ours = next((kind for kind in kinds if kind.__name__ == made_by.__name__), None)
    if ours is None:
        return value
    return ours(**{name: getattr(value, name) for name in _parts(made_by)})


@cache
def _parts(made_by: Callable[..., Any]) -> tuple[str, ...]:
    """What one is made from; each can be read from it under the same name."""
    return tuple(inspect.signature(made_by).parameters)
