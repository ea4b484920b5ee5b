"""Whatever is sent to a route that takes or gives JSON, it answers as the API's description says.

Made up from that description, within it and against it, with ids of the tenant's own and without.
The short form runs with the suite, always the same; `TINKEX_LONG=1` sends `TINKEX_EXAMPLES` (400)
of each kind to each route, from `TINKEX_SEED`.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import jsonschema_rs
import pytest
import requests
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzz.belongings import Belongings
from lifecycle.calls import Calls
from support.server_process import ServerProcess
from tinkex.server.app import ROUTES
from tinkex.server.engines.model_sources import default_cache, resolve
from tinkex.server.http.openapi import document

LONG = bool(os.environ.get("TINKEX_LONG"))
EXAMPLES = int(os.environ.get("TINKEX_EXAMPLES", "400")) if LONG else 8
FIRST = int(os.environ.get("TINKEX_SEED", "0"))
ANSWER_S = 60.0
KEY = "tml-fuzz"
DOCUMENT = document(ROUTES)
MODES = ("positive", "negative")
TWINS = ("/oai/", "/anthropic/", "/tokenize", "/detokenize")
ENDLESS = "/api/dashboard/events"
DRAWN = {
    "/v1/completions": "max_tokens",
    "/v1/chat/completions": "max_completion_tokens",
    "/v1/responses": "max_output_tokens",
    "/v1/messages": "max_tokens",
}
"""Routes that draw until a context is full if nothing says how much, and what says it there."""
MOST_DRAWN = 32
OPERATIONS = {
    f"{method.upper()} {path}": described
    for path, methods in DOCUMENT["paths"].items()
    for method, described in methods.items()
    if not path.endswith("/forward_backward") and not path.startswith(TWINS) and path != ENDLESS
}
"""All but the one that takes no JSON, whose decoder has a fuzzer of its own, those that are others
by a second name, and the stream of events, which never ends: `poll` has the same parameters."""
CASES = [
    pytest.param(name, mode, id=f"{name} {mode}")
    for name, described in OPERATIONS.items()
    for mode in MODES
    if mode == "positive" or {"parameters", "requestBody"} & described.keys()
]
"""What takes nothing cannot be given anything wrong."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = resolve("tinkex/tiny-llama", default_cache(os.environ), os.environ).folder
    home = tmp_path_factory.mktemp("routes") / "home"
    server = ServerProcess(home, model, timings={"poll_hold_s": 0.05})
    server.start()
    server.wait_ready()
    yield server
    server.end()


class Library:
    """Schemathesis: loaded where these tests run, not wherever tests are collected."""

    def __init__(self) -> None:
        import schemathesis
        from schemathesis.checks import not_a_server_error
        from schemathesis.core import NOT_SET
        from schemathesis.specs.openapi import checks

        self._mode, self.nothing = schemathesis.GenerationMode, NOT_SET
        self._operations = {
            f"{each.method.upper()} {each.path}": each
            for each in (
                found.ok()
                for found in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()
            )
        }
        self.checks = [
            not_a_server_error,
            checks.status_code_conformance,
            checks.content_type_conformance,
            checks.response_headers_conformance,
            checks.response_schema_conformance,
        ]

    def cases(self, name: str, mode: str) -> st.SearchStrategy[Any]:
        made: st.SearchStrategy[Any] = self._operations[name].as_strategy(
            generation_mode=self._mode(mode)
        )
        return made


@pytest.fixture(scope="module")
def library() -> Library:
    return Library()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_every_answer_is_as_described(
    server: ServerProcess, library: Library, name: str, mode: str
) -> None:
    with requests.Session() as session, closing(Calls(server.url, KEY)) as calls:
        session.headers["x-api-key"] = KEY
        attack = _attack(server.url, session, library, Belongings(calls), _fits(name))
        attack(library.cases(name, mode))
    assert server.is_running, "the server ended"


def _fits(name: str) -> Callable[[Any], bool]:
    """Whether a body is as its route's description says. Where work is checked later, what is
    wrong with it fails its future, so that all bodies fit there."""
    method, path = name.split()
    body = DOCUMENT["paths"][path][method.lower()].get("requestBody", {})
    schema = body.get("content", {}).get("application/json", {}).get("schema")
    if schema is None or "description" in body:
        return lambda sent: True
    validator = jsonschema_rs.validator_for(schema)

    def fits(sent: Any) -> bool:
        try:
            return bool(validator.is_valid(json.loads(sent or b"{}")))
        except (ValueError, RecursionError):
            return False

    return fits


def _attack(
    url: str,
    session: requests.Session,
    library: Library,
    mine: Belongings,
    fits: Callable[[Any], bool],
) -> Any:
    def run(cases: st.SearchStrategy[Any]) -> None:
        @seed(FIRST)
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink) if LONG else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(cases, st.randoms(use_true_random=False))
        def send(case: Any, dice: random.Random) -> None:
            if dice.random() < 0.7:
                case.path_parameters = mine.put_into(case.path_parameters, dice)
                if case.body is not library.nothing:
                    case.body = mine.put_into(case.body, dice)
            _bound(case)
            response = case.call(base_url=url, session=session, timeout=ANSWER_S)
            case.validate_response(response, checks=library.checks)
            _check_shape(response)
            if not fits(response.request.body):
                assert response.status_code >= 400, (response.request.body, response.text)

        send()

    return run


def _bound(case: Any) -> None:
    """A whole context takes longer than an answer may take here, and says no more."""
    name = DRAWN.get(case.path)
    if name is None or not isinstance(case.body, dict):
        return
    for each in {name, "max_tokens"} & case.body.keys():
        if isinstance(case.body[each], int) and case.body[each] > MOST_DRAWN:
            case.body[each] = MOST_DRAWN
    if not {name, "max_tokens"} & case.body.keys():
        case.body[name] = MOST_DRAWN


def _check_shape(response: Any) -> None:
    """A refusal says why, in JSON, and how long it is: some clients trust no other."""
    if response.status_code < 400 or response.status_code == 408:
        return
    assert "content-length" in response.headers, response.headers
    refused = response.json()
    detail = refused["error"]["message"] if "error" in refused else refused["detail"]
    assert isinstance(detail, str)
    assert 0 < len(detail) < 1000, detail
