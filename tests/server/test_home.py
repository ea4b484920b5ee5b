"""A home has one server at a time, and who comes second is told which."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinkex.server.home import Home, HomeTaken, default_home
from tinkex.server.local import open_app, settings_in


def test_a_held_home_names_its_holder_until_it_is_released(tmp_path: Path) -> None:
    holder = Home(tmp_path, "http://127.0.0.1:8000")
    with pytest.raises(HomeTaken, match=rf"process {os.getpid()} at http://127.0.0.1:8000"):
        Home(tmp_path)
    holder.release()
    Home(tmp_path).release()


@pytest.mark.parametrize("address", ["", "http://127.0.0.1:0"])
def test_a_holder_without_a_port_is_named_with_the_way_to_share(
    tmp_path: Path, address: str
) -> None:
    holder = Home(tmp_path, address)
    with pytest.raises(HomeTaken, match=rf"process {os.getpid()}, without a port; .* tinkex serve"):
        Home(tmp_path)
    holder.release()


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
    program = (
        "import os, signal, sys; from pathlib import Path; from tinkex.server.home import Home; "
        "Home(Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert killed.returncode < 0
    assert json.loads((tmp_path / "lock").read_text())["pid"]
    Home(tmp_path).release()


def test_the_usual_home_can_be_moved(tmp_path: Path) -> None:
    assert default_home({"TINKEX_HOME": str(tmp_path)}) == tmp_path
    assert default_home({}).name == ".tinkex"
