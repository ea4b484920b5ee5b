"""Names of base models as clients write them.

A name may carry a context limit: `Org/Model:peft:262144` is Org/Model with contexts of up to that
many tokens. Everything before the first colon is the model.
"""

from __future__ import annotations

import re

_SUFFIX = re.compile(r"(?P<model>[^:]+):peft:(?P<context>[1-9][0-9]{0,8})")


def context_limit(name: str) -> int | None:
    """The most tokens a sequence may have under this name of its model."""
    return split_context(name)[1]


def split_context(name: str) -> tuple[str, int | None]:
    """The model and the context limit in a name; None if it has no limit."""
    found = _SUFFIX.fullmatch(name)
    return (name, None) if found is None else (found["model"], int(found["context"]))
