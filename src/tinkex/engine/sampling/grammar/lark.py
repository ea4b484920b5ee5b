"""A `Grammar` in llguidance's form of Lark: literal text, tokens by id, JSON schemas.

Tokens that a tokenizer adds to its vocabulary, <tool_call> or <|channel|>, are not spelled by the
text they look like: wherever a form's text has one, it becomes the token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from tinkex.engine.errors import UserError
from tinkex.engine.messages import AnswerForm, Grammar

_JSON_OPTIONS = {"whitespace_pattern": r"[ \n\t]{1,40}", "coerce_one_of": True}
"""Space between JSON's parts has an end, or an answer might have none; `oneOf` is drawn as `anyOf`:
no mask can tell beforehand that a text will match one of them only."""


def written(grammar: Grammar, added: Mapping[str, int]) -> str:
    """`added` are the tokenizer's added tokens and their ids."""
    if not grammar.forms:
        raise UserError("grammar: has no forms; give at least one")
    rules = [*_start(grammar, added), f"form: {' | '.join(_form(f, added) for f in grammar.forms)}"]
    return "\n".join(rules)


def _start(grammar: Grammar, added: Mapping[str, int]) -> list[str]:
    body = "form"
    if grammar.separator is not None:
        body = f"form ({_literal(grammar.separator, added)} form)*"
    if grammar.thinking_end is None:
        return [f"start: {body}"]
    end = _literal(grammar.thinking_end, added)
    lazy = "" if grammar.thinking_end in added else "[lazy]"
    text = (r"TEXT: /(.|\n)*/", r"SPACE: /[ \n]{0,4}/")
    return [f"start: thought SPACE {body}", f"thought{lazy}: TEXT {end}", *text]


def _form(form: AnswerForm, added: Mapping[str, int]) -> str:
    parts = (_literal(form.begin, added), _json(form.schema), _literal(form.end, added))
    return " ".join(part for part in parts if part)


def _json(schema: str) -> str:
    try:
        given = json.loads(schema)
    except (ValueError, RecursionError):
        raise UserError("grammar: the schema is not JSON, or nested too deep") from None
    if not isinstance(given, dict):
        raise UserError(f"grammar: the schema must be an object, not {type(given).__name__}")
    return f"%json {json.dumps(given | {'x-guidance': _JSON_OPTIONS})}"


def _literal(text: str, added: Mapping[str, int]) -> str:
    """Text with added tokens in it, as the two things they are."""
    longest_first = sorted(added, key=len, reverse=True)
    pieces = re.split(f"({'|'.join(map(re.escape, longest_first))})", text) if added else [text]
    return " ".join(
        f"<[{added[piece]}]>" if piece in added else json.dumps(piece) for piece in pieces if piece
    )
