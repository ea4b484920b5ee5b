"""What `tinkex serve --ray` asks Ray for, and what it refuses before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tinkex.cluster.placement import Placement, actor_options, in_words
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
    config = WorkerConfig("nowhere", device=device)
    needs = Placement(config, "1", resources | {"accelerator_a": 0.5}).needs(cluster_has_gpus)
    options = actor_options(needs)
    assert options.get("num_gpus", 0) == gpus
    assert options["num_cpus"] == 1
    assert options["resources"] == {"accelerator_a": 0.5}
    assert options["memory"] >= 1 << 29


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
