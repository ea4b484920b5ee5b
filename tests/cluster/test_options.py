"""What `tinkex serve --ray` asks Ray for, and what it refuses before anything starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tinkex.cluster.placement import Placement, actor_options, in_words
from tinkex.cluster.served_folders import NotServed, ServedFolders, content_of
from tinkex.engine.model.known import KNOWN
from tinkex.engine.settings import WorkerConfig
from tinkex.server.engines import launching
from tinkex.server.hosting.serve import ServeOptions, serve


def test_without_the_package_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launching.importlib.util, "find_spec", lambda _: None)
    options = ServeOptions(home=tmp_path, port=0, ray="auto")
    assert serve(options, {}) == 1
    assert "pip install 'tinkex[ray]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "address", ["", "nonsense", "ray://head:10001", "head:", "http://head:1", "head:99999"]
)
def test_what_can_be_no_address_of_a_cluster_is_refused(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve(ServeOptions(home=tmp_path, port=0, ray=address), {}) == 1
    said = capsys.readouterr().err
    assert f"--ray '{address}'" in said
    assert "HOST:PORT" in said
    assert serve(ServeOptions(home=tmp_path, port=0), {"TINKEX_RAY": address or " "}) == 1
    assert "HOST:PORT" in capsys.readouterr().err


def test_a_gpu_of_this_machine_is_refused_on_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ServeOptions(home=tmp_path, port=0, device="cuda:1")
    assert serve(options, {"TINKEX_RAY": "auto"}) == 1
    assert "give --device cuda" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "cluster_has_gpus", "resources", "gpus"),
    [
        ("auto", False, {}, 0),
        ("auto", True, {}, 1),
        ("cpu", True, {}, 0),
        ("cuda", False, {}, 1),
        ("auto", False, {"GPU": 2.0}, 2),
    ],
)
def test_an_engine_asks_for_what_its_device_needs(
    device: str, cluster_has_gpus: bool, resources: dict[str, float], gpus: int
) -> None:
    config, own = WorkerConfig("nowhere", device=device), {"accelerator_a": 0.5}
    needs = Placement(config, "1", "home", resources | own).needs(cluster_has_gpus)
    options = actor_options(needs)
    assert options.get("num_gpus", 0) == gpus
    assert options["num_cpus"] == 1
    assert options["resources"] == {"accelerator_a": 0.5}
    assert options["memory"] >= 1 << 29


def test_an_engine_that_keeps_experts_in_mxfp4_asks_for_the_memory_they_take(
    tmp_path: Path,
) -> None:
    """Left to itself it widens them wherever they fit, so it asks for the room."""
    (tmp_path / "config.json").write_text(json.dumps(KNOWN["openai/gpt-oss-20b"]))

    def asked(packed: int | None) -> float:
        config = WorkerConfig(str(tmp_path), device="cuda", packed_experts=packed)
        return Placement(config, "1", "home").needs(True)["memory"] / 2**30

    assert 39 < asked(None) == asked(0) < 41
    assert 13 < asked(1) < 15


REFUSED = """
import socket, ray
from tinkex.cluster.link import Link, Unreachable

def refused(*_, **__):
    raise ConnectionError("Failed to connect to Ray cluster")

ray.init = refused
with socket.create_server(("127.0.0.1", 0)) as listening:
    try:
        Link(f"127.0.0.1:{listening.getsockname()[1]}")
    except Unreachable as error:
        print(error)
"""


def test_of_a_cluster_that_lets_nobody_in_a_token_is_named() -> None:
    """Ray says no more of a wrong or missing one than of a cluster that is not there."""
    told = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True).stdout
    assert "Failed to connect to Ray cluster; something listens there: if it is a" in told
    assert "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" in told


def test_needs_are_said_in_words() -> None:
    assert in_words({"CPU": 1.0}) == "1 CPU"
    assert in_words({"CPU": 1.0, "GPU": 1.0, "memory": 2e9}) == "1 CPU, 1 GPU and 2.0 GB of memory"


def test_neither_the_package_nor_a_server_loads_ray() -> None:
    program = """
import sys, tinkex, tinkex.server.app, tinkex.server.hosting.terminal
import tinkex.cluster.engines, tinkex.cluster.engine_actor
assert "ray" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_only_the_model_and_folders_inside_the_home_are_for_engines(tmp_path: Path) -> None:
    model, home = tmp_path / "model", tmp_path / "home"
    weights = home / "weights" / "a"
    for folder in (model, weights):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"bytes")
    (home / "keys.json").write_text("secret")
    folders = ServedFolders(str(model), str(home))
    for path in (model, weights):
        [(name, offset, part)] = folders.parts(str(path))
        assert (name, offset, bytes(part)) == ("file", 0, b"bytes")
    for path in (home, tmp_path, home / "weights" / ".." / "..", tmp_path / "missing"):
        with pytest.raises(NotServed):
            list(folders.parts(str(path)))


def test_a_model_is_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(3_000_000))
    before = content_of(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(bytes(2_999_999) + b"1")
    assert content_of(tmp_path) != before


def test_nothing_travels_where_all_nodes_share_the_folders() -> None:
    config = WorkerConfig("/models/m")
    assert Placement(config, "1", "/nfs/home", shared=("/models", "/nfs")).shares_files
    assert not Placement(config, "1", "/nfs/home", shared=("/nfs",)).shares_files
    assert not Placement(config, "1", "/nfs/home").shares_files
