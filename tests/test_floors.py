"""No part of the package imports upward or sideways, neither between floors nor between rooms."""

import re
from pathlib import Path

import pytest

import tinkex
from support.floors import ROOMS, Violation, room_violations, violations

PACKAGE = Path(next(iter(tinkex.__path__)))
REPOSITORY = Path(__file__).parents[1]


def test_every_floor_imports_only_what_lies_below_it() -> None:
    assert [str(violation) for violation in violations(PACKAGE)] == []


@pytest.mark.parametrize(
    ("file", "source", "imported"),
    [
        ("types/a.py", "from tinkex.wire import limits", "tinkex.wire.limits"),
        ("types/a.py", "from tinkex import ServiceClient", "tinkex.ServiceClient"),
        ("wire/a.py", "import tinkex.client.config", "tinkex.client.config"),
        ("wire/a.py", "def f():\n    from tinkex import server", "tinkex.server"),
        ("client/a.py", "from tinkex.server.app import app", "tinkex.server.app"),
        ("client/a.py", "import json, tinkex.engine", "tinkex.engine"),
        (
            "server/engines/child_process.py",
            "import tinkex.engine.training.trainer",
            "tinkex.engine.training.trainer",
        ),
        ("cli/a.py", "import tinkex.engine", "tinkex.engine"),
        ("client/a.py", 'import importlib\nimportlib.import_module("tinkex.cli")', "tinkex.cli"),
        ("server/a.py", "from tinkex.engine import training", "tinkex.engine.training"),
        ("server/a.py", "from tinkex.engine.process import run", "tinkex.engine.process"),
        ("engine/a.py", "from tinkex.types import Datum", "tinkex.types"),
        ("engine/a.py", "import pydantic", "pydantic"),
        ("server/engines/launching.py", "import ray", "ray"),
        ("cluster/engines.py", "import ray", "ray"),
        ("engine/deep/a.py", "if TYPE_CHECKING:\n    import transformers", "transformers"),
    ],
)
def test_the_check_finds_what_it_is_for(
    tmp_path: Path, file: str, source: str, imported: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    found = [each.imported for each in violations(tmp_path)]
    assert found == [imported]


def test_the_check_lets_the_allowed_imports_pass(tmp_path: Path) -> None:
    for file, source in {
        "server/a.py": "import tinkex.engine.messages\nfrom tinkex.engine import messages",
        "client/a.py": "from tinkex import types\nimport tinkex.wire.json\nimport pyqwest",
        "engine/a.py": "import torch\nimport json\nfrom tinkex.engine.messages import Datum",
        "alias.py": "import tinkex.server",
        "cli/a.py": "from tinkex import RestClient",
    }.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    assert violations(tmp_path) == []


def test_every_room_imports_only_rooms_its_floor_lists_below_it() -> None:
    assert [str(violation) for violation in room_violations(PACKAGE)] == []


@pytest.mark.parametrize("floor", ROOMS)
def test_the_rooms_of_a_floor_have_an_order(floor: str) -> None:
    """No cycle can be written into the table: a room may only name rooms that come before it."""
    earlier: set[str] = set()
    for room, below in ROOMS[floor].items():
        assert set(below.split()) <= earlier, room
        earlier.add(room)


@pytest.mark.parametrize("floor", ROOMS)
def test_the_table_of_rooms_is_the_tree(floor: str) -> None:
    found = {
        path.stem
        for path in (PACKAGE / floor).iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert found - {"__init__"} == set(ROOMS[floor])


def test_no_folder_holds_more_than_twenty_modules() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    crowded = {
        folder.relative_to(PACKAGE).as_posix(): count
        for folder in folders
        if (count := len([*folder.glob("*.py")]) - 1) > 20
    }
    assert crowded == {}


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "scripts", "examples"])
def test_no_file_has_more_than_four_hundred_lines(folder: str) -> None:
    lines = {
        path.relative_to(REPOSITORY).as_posix(): len(path.read_text().splitlines())
        for path in (REPOSITORY / folder).rglob("*.py")
    }
    assert {name: count for name, count in lines.items() if count > 400} == {}


@pytest.mark.parametrize(
    ("file", "source", "imported"),
    [
        ("server/clock.py", "from tinkex.server import core", "tinkex.server.core"),
        ("server/storage/a.py", "from tinkex.server.http import x", "tinkex.server.http"),
        ("server/new_room/a.py", "import tinkex.server.clock", "tinkex.server.clock"),
        ("engine/kernels/a.py", "from tinkex.engine.model.ops import f", "tinkex.engine.model.ops"),
        (
            "client/api/a.py",
            "if TYPE_CHECKING:\n    import tinkex.client.rest",
            "tinkex.client.rest",
        ),
    ],
)
def test_the_check_of_rooms_finds_what_it_is_for(
    tmp_path: Path, file: str, source: str, imported: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert [each.imported for each in room_violations(tmp_path)] == [imported]


_SILENCED = re.compile(r"# type: ignore(?!\[[\w, -]+\]  # \w)|# noqa(?!: [A-Z]+\d+ - \w)")
"""What tells a checker to look away, without saying of what and why."""


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "scripts", "examples"])
def test_checkers_are_told_why_to_look_away(folder: str) -> None:
    """And mypy only where it looks at all."""
    found = []
    for path in (REPOSITORY / folder).rglob("*.py"):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if path == Path(__file__) or path.name.endswith("_pb2.py"):
                continue
            if _SILENCED.search(line) or (folder != "src" and "# type: ignore" in line):
                found.append(f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()}")
    assert found == []


def test_a_violation_reads_as_file_and_line() -> None:
    assert str(Violation("types/a.py", 3, "tinkex.wire")) == "types/a.py:3 imports tinkex.wire"
