"""Routes found by their path are those that trying every pattern in order would find."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.routing import BaseRoute, Match, Route

from tinkex.server.app import ROUTES
from tinkex.server.http.routing import ByPath

SPELT_OUT = [
    (method, route.path)
    for route in ROUTES
    if isinstance(route, Route) and "{" not in route.path
    for method in sorted(route.methods or ())
]


def by_pattern(scope: dict[str, Any]) -> Any:
    found = (route.matches(scope) for route in ROUTES)
    return next(child for match, child in found if match is Match.FULL)


@pytest.mark.parametrize(("method", "path"), SPELT_OUT)
def test_a_path_leads_where_its_pattern_does(method: str, path: str) -> None:
    scope = {"type": "http", "method": method, "path": path}
    assert ByPath(ROUTES).matches(scope) == (Match.FULL, by_pattern(scope))


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/v1/models"), ("GET", "/v1/models/a/b"), ("GET", "/nowhere")]
)
def test_whatever_else_is_asked_goes_on_to_the_patterns(method: str, path: str) -> None:
    table: BaseRoute = ByPath(ROUTES)
    assert table.matches({"type": "http", "method": method, "path": path})[0] is Match.NONE
