"""The API as an OpenAPI 3.1 document, made from the table of routes.

Bodies are described by the types they are read as, answers by the types clients decode them with,
queries by letting the routes' own readers read a probe, refusals by the tree of refusals: nothing
is written down twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any

from pydantic import TypeAdapter
from starlette.routing import BaseRoute

from tinkex.server.http.queries import FARTHEST, Query
from tinkex.server.http.routing import ApiRoute, Contract, DashboardShape
from tinkex.server.protocol.reading import Schema
from tinkex.server.refusals import Refusal, Unauthorized
from tinkex.server.views.queries import Page
from tinkex.wire.limits import HEADER_API_KEY
from tinkex.wire.package_version import package_version

_JSON = "application/json"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


def document(routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """The description of those routes that can be described."""
    paths: dict[str, dict[str, Any]] = {}
    components: dict[str, Schema] = {}
    for route in routes:
        if isinstance(route, ApiRoute):
            path = _PARAMETER.sub(r"{\1}", route.path)
            for method in sorted((route.methods or set()) - {"HEAD"}):
                paths.setdefault(path, {})[method.lower()] = _operation(route, components)
    key = {"type": "apiKey", "in": "header", "name": HEADER_API_KEY}
    return {
        "openapi": "3.1.0",
        "info": {"title": "tinkex", "version": package_version()},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": key}},
    }


def _operation(route: ApiRoute, components: dict[str, Schema]) -> dict[str, Any]:
    contract = route.contract
    found: dict[str, Any] = {"summary": route.summary} if route.summary else {}
    parameters = [*_path_parameters(route.path), *_query_parameters(contract.asks)]
    if parameters:
        found["parameters"] = parameters
    if contract.reads is not None:
        found["requestBody"] = _body(contract)
    if contract.needs_key:
        found["security"] = [{"key": []}]
    found["responses"] = _responses(contract, components)
    return found


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(path)
    ]


def _body(contract: Contract) -> dict[str, Any]:
    if isinstance(contract.reads, str):
        return {"required": True, "content": {contract.reads: {}}}
    schemas = [reader.schema() for reader in contract.readers]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    body: dict[str, Any] = {"required": True, "content": {_JSON: {"schema": schema}}}
    if contract.checked_later:
        body["description"] = (
            "Addressed work is accepted; what else is wrong with it fails its future."
        )
    return body


# ---- answers


def _responses(contract: Contract, components: dict[str, Schema]) -> dict[str, Any]:
    """What the route answers, and every refusal there is."""
    refused = _content((contract.refused,), components)
    responses = {
        str(kind.status): {"description": _sentence(kind), "content": refused}
        for kind in _refusals()
        if contract.needs_key or kind is not Unauthorized
    }
    for status, types in contract.answers.items():
        responses[str(status)] = {
            "description": "as asked" if status == 200 else "not, or not yet, as asked",
            "content": _content(types, components),
        }
    return dict(sorted(responses.items()))


def _refusals() -> list[type[Refusal]]:
    """Those that any route may answer; a route's own are among its answers."""
    own = [kind for kind in Refusal.__subclasses__() if kind.__module__ == Refusal.__module__]
    return [Refusal, *own]


def _sentence(kind: type[Refusal]) -> str:
    return re.sub(r"(?<!^)([A-Z])", r" \1", kind.__name__).lower()


def _content(types: Sequence[Any], components: dict[str, Schema]) -> dict[str, Any]:
    """A media type is its own; types are JSON, any of them."""
    schemas = [_schema(kind, components) for kind in types if not isinstance(kind, str)]
    content: dict[str, Any] = {kind: {} for kind in types if isinstance(kind, str)}
    if schemas:
        content[_JSON] = {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}
    return content


def _schema(kind: Any, components: dict[str, Schema]) -> Schema:
    if isinstance(kind, DashboardShape):
        return _schema(kind.load(), components)
    prefix = _prefix(kind)
    schema = TypeAdapter(kind).json_schema(ref_template=f"#/components/schemas/{prefix}{{model}}")
    components.update({prefix + name: each for name, each in schema.pop("$defs", {}).items()})
    name = prefix + getattr(kind, "__name__", "")
    if schema.get("type") != "object" or "properties" not in schema:
        return schema
    components[name] = schema
    return {"$ref": f"#/components/schemas/{name}"}


def _prefix(kind: Any) -> str:
    """Types of the protocol keep their names; others, which may share one, name their file too."""
    module = getattr(kind, "__module__", "")
    ours = module.startswith("tinkex.server.") and not module.endswith(".answers")
    return f"{module.rpartition('.')[2]}." if ours else ""


# ---- queries


class _QueryProbe(Query):
    """A query nobody sent: `found` is what was read of it."""

    def __init__(self) -> None:
        super().__init__({})
        self.found: list[dict[str, Any]] = []

    def page(self, default: int) -> Page:
        self.number("limit", default)
        self.number("offset", 0)
        return Page(default, 0)

    def number(self, name: str, default: int) -> int:
        limits: Mapping[str, int] = {"minimum": 0, "maximum": FARTHEST, "default": default}
        self._note(name, {"type": "integer", **limits})
        return default

    def choice(self, name: str, options: Sequence[str]) -> str:
        self._note(name, {"type": "string", "enum": list(options), "default": options[0]})
        return options[0]

    def optional_text(self, name: str) -> str | None:
        self._note(name, {"type": "string"})
        return None

    def moment(self, name: str) -> datetime:
        self._note(name, {"type": "string", "format": "date-time"}, required=True)
        return datetime.now(UTC)

    def optional_day(self, name: str) -> date | None:
        self._note(name, {"type": "string", "format": "date"})
        return None

    def _note(self, name: str, schema: Schema, required: bool = False) -> None:
        self.found.append({"name": name, "in": "query", "required": required, "schema": schema})


def _query_parameters(asks: Callable[[Query], object] | None) -> list[dict[str, Any]]:
    probe = _QueryProbe()
    if asks is not None:
        asks(probe)
    return probe.found
