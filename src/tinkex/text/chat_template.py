"""Rendering chat templates the way the Hugging Face libraries do, in a sandbox and within bounds.

A template comes with a model, so it is code of the one who serves it; what it renders is not. The
sandbox keeps both from Python's insides, the bounds keep a conversation from taking for ever.
"""

from __future__ import annotations

import functools
import json
import time
from datetime import datetime
from typing import Any, NoReturn

from tinkex.text.errors import TokenizerError

_MOST_CHARACTERS = 64 * 1024 * 1024
_MOST_SECONDS = 20.0


def render_chat(template: str, **variables: Any) -> str:
    """The text of a conversation; ``TokenizerError`` when the template refuses or breaks on it."""
    parts: list[str] = []
    size, deadline = 0, time.monotonic() + _MOST_SECONDS
    try:
        for part in _compiled(template).generate(**{"documents": None, **variables}):
            parts.append(part)
            size += len(part)
            if size > _MOST_CHARACTERS or time.monotonic() > deadline:
                raise TokenizerError("The chat template makes too much of this conversation")
    except TokenizerError:
        raise
    except Exception as error:  # whatever a template does to values it does not expect
        raise TokenizerError(
            f"The chat template cannot render this conversation: {error}"
        ) from error
    return "".join(parts)


@functools.lru_cache(maxsize=32)
def variables_of(template: str) -> frozenset[str]:
    """What a template reads that its caller may set."""
    from jinja2 import TemplateSyntaxError, meta

    try:
        return frozenset(meta.find_undeclared_variables(_environment().parse(template)))
    except TemplateSyntaxError as error:
        raise TokenizerError(f"The chat template cannot be read: {error}") from None


@functools.lru_cache(maxsize=32)
def _compiled(template: str) -> Any:
    compiled = _environment().from_string(template)
    compiled.globals = dict(compiled.globals)  # read whole for every conversation; a chain is slow
    return compiled


@functools.cache
def _environment() -> Any:
    # Imported when a template is rendered: most programs never do.
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from tinkex.text.generation_tag import GenerationTag

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which would change what the model reads.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> NoReturn:
    raise TokenizerError(f"The chat template refused the conversation: {message}")
