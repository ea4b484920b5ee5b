"""An install without the server extra: the client is whole, the rest says what to install."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
"""


def server_packages() -> set[str]:
    """What the extra brings and the client does not ask for itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {line.partition(">")[0] for line in project["optional-dependencies"]["server"]}
    return names - {line.partition(">")[0] for line in project["dependencies"]} | {"transformers"}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "sitecustomize.py").write_text(BLOCK.format(names=server_packages()))
    home = {"HOME": str(tmp_path), "TINKEX_HOME": str(tmp_path / "home")}
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), **home}


def run(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, *words]
    return subprocess.run(line, env=environ, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "words", [["serve"], ["demo"], ["keys", "list"], ["run", "list", "--local"]], ids=" ".join
)
def test_commands_that_need_the_server_say_how_to_install_it(
    environ: dict[str, str], words: list[str]
) -> None:
    ran = run(environ, "-m", "tinkex", *words)
    assert ran.returncode == 1
    assert "pip install 'tinkex[server]'" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_embedded_server_says_how_to_install_it(environ: dict[str, str]) -> None:
    code = "import tinkex; tinkex.ServiceClient(base_url='local').get_server_capabilities()"
    assert "pip install 'tinkex[server]'" in run(environ, "-c", code).stderr


def test_chat_templates_are_rendered(environ: dict[str, str]) -> None:
    code = (
        "from tinkex.text.chat_template import render_chat\n"
        "print(render_chat('{% for m in messages %}<{{ m.content }}>{% endfor %}',"
        " messages=[{'content': 'hi'}]))"
    )
    assert run(environ, "-c", code).stdout == "<hi>\n"
