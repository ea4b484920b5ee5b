"""Rendering chat templates the way the Hugging Face libraries do, in a sandbox."""

from __future__ import annotations

import functools
import json
from datetime import datetime
from typing import Any, NoReturn

from tinkex.text.errors import TokenizerError


def render_chat(template: str, **variables: Any) -> str:
    """The text of a conversation; ``TokenizerError`` when the template refuses it."""
    text: str = _compiled(template).render(**variables)
    return text


@functools.lru_cache(maxsize=32)
def _compiled(template: str) -> Any:
    # Imported when a template is rendered: most programs never do.
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    # Jinja's own filter escapes HTML, which would change what the model reads.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TokenizerError(f"The chat template refused the conversation: {message}")
