"""`{% generation %}`: chat templates mark with it what the model says, so that training can tell.

It changes nothing about the text. A module of its own, so that jinja is imported when the first
template is rendered.
"""

from __future__ import annotations

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser


class GenerationTag(Extension):
    """What stands inside is written as it is; names that are set there end with it."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
