"""The table of operation kinds: adding one is adding its module and its line, and nothing else."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import tinkex
from support.served import served
from tinkex.server.operations.base import OperationKind
from tinkex.server.operations.kinds import KINDS, named

PACKAGE = Path(tinkex.__file__).parent
TESTS = Path(__file__).parents[1]

MODULE = """
from tinkex.engine.messages import OptimStep
from tinkex.server.operations.base import Conclusion, OperationKind, Prepared
from tinkex.server.protocol.limited import at_least, limited
from tinkex.server.protocol.outcomes import success
from tinkex.server.protocol.reading import Reader
from tinkex.types.small_requests import OperationAddress


class DecayRequest(OperationAddress):
    rate: float


READER = Reader(limited(DecayRequest, rate=at_least(0)))


async def _prepare(around, run, entry, body):
    rate = READER.parse(body).rate
    command = OptimStep(entry.request_id, run.model_id, "adamw", {"learning_rate": rate})

    async def conclude(result):
        return Conclusion(success({"decayed": rate}))

    return Prepared((command,), conclude)


DECAY = OperationKind(
    name="decay", changes="weights", prepare=_prepare, path="/api/v1/decay", reader=READER
)
"""
IMPORT = "from tinkex.server.operations import create, "
LINE = "KINDS: tuple[OperationKind, ...] = (\n"

USE = """
import asyncio, json, sys
from pathlib import Path
from support.served import served
from tinkex.server.app import ROUTES
from tinkex.server.http.openapi import document


async def main():
    async with served(Path(sys.argv[1])) as api:
        model = await api.model(await api.session())
        def decay(seq, **body):
            return api.post("decay", {"model_id": model, "seq_id": seq, **body})
        first = await api.result((await decay(1, rate=0.5))["request_id"])
        again = await decay(1, rate=0.5)
        wrong = await api.result((await decay(2, rate=-1.0))["request_id"])
        api.engine.current.die()
        last = await api.result((await decay(3, rate=0.25))["request_id"])
        print(json.dumps([first, again["request_id"], wrong, last, api.applied(model),
                          "/api/v1/decay" in document(ROUTES)["paths"], model]))


asyncio.run(main())
"""


def test_a_kind_is_one_module_and_one_line(tmp_path: Path) -> None:
    """It is accepted once, in order, checked in its turn, repeated after a loss and described."""
    package = tmp_path / "changed" / "tinkex"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    operations = package / "server" / "operations"
    (operations / "decay.py").write_text(MODULE)
    table = (operations / "kinds.py").read_text()
    assert LINE in table
    assert IMPORT in table
    table = table.replace(IMPORT, f"{IMPORT}decay, ").replace(LINE, f"{LINE}    decay.DECAY,\n")
    (operations / "kinds.py").write_text(table)
    first, again, wrong, last, applied, described, model = _use(package.parent, tmp_path / "home")
    assert first == {"decayed": 0.5}
    assert last == {"decayed": 0.25}
    assert again == f"{model}:1"
    assert wrong["category"] == "user"
    assert "rate" in wrong["error"]
    assert applied == ["step:0.5", "step:0.25"]  # of the second life: the first was repeated
    assert described


def _use(packages: Path, home: Path) -> list[object]:
    path = os.pathsep.join(map(str, (packages, TESTS)))
    done = subprocess.run(
        [sys.executable, "-c", USE, str(home)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


async def test_an_operation_of_a_kind_that_is_not_known_fails_and_says_so(tmp_path: Path) -> None:
    """As after going back to an earlier version of the server."""
    async with served(tmp_path) as api:
        model = await api.model(await api.session())
        run = await api.core.runs.owned(api.core.tenants.identify(api.key), model)
        strange = named("rotate")
        assert isinstance(strange, OperationKind)
        assert strange not in KINDS
        values = {"model_id": model, "seq_id": 1}
        body = json.dumps(values).encode()
        accepted = await api.core.training.operation(run.tenant, strange, values, body)
        outcome = await api.result(accepted.request_id)
        assert outcome["category"] == "user"
        assert "'rotate'" in outcome["error"]
        await api.result((await api.step(model, 2))["request_id"])
        assert api.applied(model) == ["step:0.1"]


def test_kinds_are_known_by_name_in_their_own_modules_only() -> None:
    """What others need to know of a kind, they ask it."""
    names = {kind.name for kind in KINDS}
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {name}"
        for path in sorted((PACKAGE / "server").rglob("*.py"))
        if path.parent.name != "operations" and path.name != "migrations.py"
        for line, name in _texts(path)
        if name in names
    ]
    assert not found


def _texts(path: Path) -> list[tuple[int, str]]:
    tree = ast.parse(path.read_text())
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
