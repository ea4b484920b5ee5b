"""A home has one server at a time, and who comes second is told which."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tinkex.server.hosting.embedded import open_app, settings_in
from tinkex.server.storage.home import Holder, Home, HomeTaken, default_home, holder_of


def test_a_held_home_names_its_holder_until_it_is_released(tmp_path: Path) -> None:
    holder = Home(tmp_path, "http://127.0.0.1:8000")
    with pytest.raises(HomeTaken, match=rf"process {os.getpid()}, .* http://127.0.0.1:8000"):
        Home(tmp_path)
    holder.release()
    Home(tmp_path).release()


def test_a_script_that_holds_a_home_is_named_with_the_ways_to_share_it(tmp_path: Path) -> None:
    holder = Home(tmp_path)
    with pytest.raises(HomeTaken, match=rf"process {os.getpid()}, a script .* --local join it"):
        Home(tmp_path)
    holder.release()


def test_the_socket_is_its_owners_alone_and_goes_with_the_lock(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    home = Home(tmp_path)
    path = tmp_path / "socket"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert holder_of(tmp_path) == Holder(os.getpid(), "", str(path))
    home.release()
    assert not path.exists()


def test_a_path_too_long_for_a_socket_has_its_socket_elsewhere(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    home = Home(deep)
    path = Path(home.socket.path)
    assert not path.is_relative_to(tmp_path)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(path))
    home.release()
    assert not path.parent.exists()


@pytest.mark.parametrize("depth", [1, 100])
def test_what_a_killed_holder_left_of_its_socket_is_swept(tmp_path: Path, depth: int) -> None:
    root = tmp_path / ("x" * depth)
    assert _killed_in(root) < 0
    left = holder_of(root)
    assert left is not None
    assert Path(left.socket).exists()
    home = Home(root)
    assert Path(left.socket).exists() == (left.socket == home.socket.path)
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(home.socket.path)
    home.release()


_FORK = """
import os, sys
from pathlib import Path
from tinkex.server.storage.home import Home
home = Home(Path(sys.argv[1]))
if os.fork():
    os._exit(0)
print("alone", flush=True)
sys.stdin.read()
"""


def test_a_forked_child_does_not_keep_its_parents_home(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    line = [sys.executable, "-c", _FORK, str(tmp_path)]
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "alone\n"
        assert parent.wait(30) == 0
        Home(tmp_path).release()  # the child lives until its input ends


def test_a_local_server_can_serve_a_model_under_another_name(tmp_path: Path) -> None:
    environ = {"TINKEX_MODELS": "Some/Recipe-8B=tinkex/tiny-llama", "TINKEX_CACHE": str(tmp_path)}
    settings = settings_in(tmp_path, environ)
    assert [model.name for model in settings.models] == ["tinkex/tiny-llama"]
    assert settings.aliases == {"Some/Recipe-8B": "tinkex/tiny-llama"}


def test_a_local_server_beside_another_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    holder = Home(tmp_path / "home")
    environ = {"TINKEX_HOME": str(tmp_path / "home"), "TINKEX_MODELS": "no/such-model"}
    with pytest.raises(HomeTaken):
        open_app(environ)
    holder.release()


def test_a_killed_holder_leaves_the_home_free(tmp_path: Path) -> None:
    assert _killed_in(tmp_path) < 0
    assert json.loads((tmp_path / "lock").read_text())["pid"]
    Home(tmp_path).release()


def _killed_in(root: Path) -> int:
    """The status of a process that was killed while it held a home."""
    program = (
        "import os, signal, sys; from pathlib import Path; "
        "from tinkex.server.storage.home import Home; "
        "Home(Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    return subprocess.run([sys.executable, "-c", program, str(root)], check=False).returncode


def test_the_usual_home_can_be_moved(tmp_path: Path) -> None:
    assert default_home({"TINKEX_HOME": str(tmp_path)}) == tmp_path
    assert default_home({}).name == ".tinkex"
