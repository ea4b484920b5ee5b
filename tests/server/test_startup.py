"""A server loads what it serves with, and nothing that only some are ever asked for."""

from __future__ import annotations

import json
import subprocess
import sys

_SHOW = """
import json, sys
import pydantic._internal._model_construction as models
built, complete = [], models.complete_model_class
def noted(cls, *args, **options):
    built.append(cls.__name__)
    return complete(cls, *args, **options)
models.complete_model_class = noted
import tinkex.server.app
print(json.dumps([list(sys.modules), built]))
"""
SELDOM = {
    "gzip",
    "importlib.metadata",
    "prometheus_client",
    "statistics",
    "tinkex.server.endpoints.service",
    "tinkex.server.engines.model_needs",
    "tinkex.server.http.dashboard_shapes",
    "tinkex.server.http.openapi",
    "tinkex.server.storage.objects.opening",
    "tinkex.text.light_tokenizer",
    "torch",
}


def test_importing_the_application_loads_and_builds_only_what_every_server_needs() -> None:
    done = subprocess.run([sys.executable, "-c", _SHOW], capture_output=True, text=True, check=True)
    modules, built = json.loads(done.stdout)
    assert SELDOM.isdisjoint(modules)
    assert built == []
    assert modules.index("numpy") < modules.index("tinkex.server.core"), "see `server/app.py`"
