"""No part of the package imports upward or sideways."""

from pathlib import Path

import pytest

import tinkex
from support.floors import Violation, violations

PACKAGE = Path(next(iter(tinkex.__path__)))


def test_every_floor_imports_only_what_lies_below_it() -> None:
    assert [str(violation) for violation in violations(PACKAGE)] == []


@pytest.mark.parametrize(
    ("file", "source", "imported"),
    [
        ("types/a.py", "from tinkex.wire import limits", "tinkex.wire"),
        ("types/a.py", "from tinkex import ServiceClient", "tinkex.ServiceClient"),
        ("wire/a.py", "import tinkex.client.config", "tinkex.client.config"),
        ("wire/a.py", "def f():\n    from tinkex import server", "tinkex.server"),
        ("client/a.py", "from tinkex.server.app import app", "tinkex.server.app"),
        ("client/a.py", "import json, tinkex.engine", "tinkex.engine"),
        ("server/launch.py", "import tinkex.engine.trainer", "tinkex.engine.trainer"),
        ("cli/a.py", "import tinkex.engine", "tinkex.engine"),
        ("client/a.py", 'import importlib\nimportlib.import_module("tinkex.cli")', "tinkex.cli"),
        ("server/a.py", "from tinkex.engine import trainer", "tinkex.engine.trainer"),
        ("server/a.py", "from tinkex.engine.worker import run", "tinkex.engine.worker"),
        ("engine/a.py", "from tinkex.types import Datum", "tinkex.types"),
        ("engine/a.py", "import pydantic", "pydantic"),
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


def test_a_violation_reads_as_file_and_line() -> None:
    assert str(Violation("types/a.py", 3, "tinkex.wire")) == "types/a.py:3 imports tinkex.wire"
