"""Under the alias, `import tinker` means tinkex: the same modules, the same classes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COOKBOOK = Path(__file__).parent / "support" / "cookbook_imports.py"


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, timeout=240
    )


def output_of(code: str) -> str:
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_names_and_modules_are_the_same_objects() -> None:
    code = """
import tinkex, tinkex.alias
tinkex.alias.install()
tinkex.alias.install()
import tinker, tinker.types, tinker.types.tensor_data, tinker.lib.public_interfaces
from tinker.types.tensor_data import TensorData
from tinker.types.image_chunk import ImageChunk
from tinker.lib.public_interfaces import APIFuture
from tinker.lib.public_interfaces.rest_client import RestClient
from tinker._exceptions import NotFoundError
assert tinker is tinkex
assert tinker.types is tinkex.types
assert tinker.TensorData is tinkex.TensorData is TensorData is tinker.types.TensorData
assert tinker.types.ImageChunk is ImageChunk
assert tinker.APIFuture is APIFuture
assert tinker.RestClient is RestClient
assert tinker.NotFoundError is NotFoundError
assert not [m for m in __import__("sys").modules if "site-packages/tinker/" in str(
    getattr(__import__("sys").modules[m], "__file__", ""))]
import pickle
assert pickle.loads(pickle.dumps(TensorData([1], "int64"))).data == [1]
try:
    import tinker.no_such_module
except ModuleNotFoundError as error:
    print(error)
"""
    assert "no_such_module" in output_of(code)


CHILDREN = """
import multiprocessing, subprocess, sys
import tinker

def whose(_: int) -> str:
    import tinker.types
    return tinker.__title__ + tinker.types.Datum.__module__

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(whose, [0])[0])
    code = "from tinker import types; print(types.Datum.__module__)"
    print(subprocess.check_output([sys.executable, "-c", code], text=True))
"""


def test_processes_of_a_program_under_the_alias_have_it_too(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CHILDREN)
    done = run("-m", "tinkex.alias", str(script))
    assert done.stdout.split() == ["tinkextinkex", "tinkex"], done.stderr


def test_it_refuses_once_the_official_package_is_loaded() -> None:
    pytest.importorskip("tinker")
    code = """
import tinker, tinkex.alias
try:
    tinkex.alias.install()
except tinkex.alias.AliasError as error:
    print(error)
import sys
assert "site-packages" in tinker.__file__ and sys.modules["tinker"] is tinker
"""
    printed = output_of(code)
    assert "already imported" in printed
    assert "python -m tinkex.alias" in printed


def test_importing_the_alias_changes_nothing_by_itself() -> None:
    assert output_of("import tinkex.alias, sys; print('tinker' in sys.modules)") == "False"


SCRIPT = """
import sys, tinker, helper
if __name__ == "__main__":
    print(tinker.__title__, sys.argv[1:], helper.VALUE, tinker.types.Datum.__name__)
    sys.exit(3)
"""


def test_a_script_runs_under_the_alias_with_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("VALUE = 7")
    done = run("-m", "tinkex.alias", str(tmp_path / "script.py"), "a", "--b")
    assert done.stdout.strip() == "tinkex ['a', '--b'] 7 Datum"
    assert done.returncode == 3


def test_a_module_runs_under_the_alias_with_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("VALUE = 8")
    done = run("-m", "tinkex.alias", "-m", "script", "-m", "x", cwd=tmp_path)
    assert done.stdout.strip() == "tinkex ['-m', 'x'] 8 Datum"
    assert done.returncode == 3


@pytest.mark.parametrize("arguments", [[], ["-m"], ["--help"], ["missing.py"]])
def test_a_wrong_call_explains_itself(arguments: list[str]) -> None:
    done = run("-m", "tinkex.alias", *arguments)
    assert done.returncode == 1
    assert "usage" in done.stderr or "no such script" in done.stderr


@pytest.mark.slow
def test_the_cookbook_imports_as_far_under_the_alias_as_without_it() -> None:
    pytest.importorskip("tinker_cookbook")

    done = run(str(COOKBOOK))
    assert done.returncode == 0, done.stderr
    answer: dict[str, dict[str, Any]] = json.loads(done.stdout)
    official, ours = answer["official"], answer["ours"]
    assert "site-packages" in official["tinker"]
    assert ours["tinker"].endswith("tinkex/__init__.py")
    assert ours["count"] == official["count"] > 250
    assert ours["failed"].keys() <= official["failed"].keys()
    assert len(official["failed"]) < 50
