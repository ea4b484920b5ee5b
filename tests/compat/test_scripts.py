"""A program written for the official SDK prints the same on ours, over HTTP and in process."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.ending import ended_well
from support.live_server import live_server

pytestmark = pytest.mark.slow

MODEL = "tinkex/tiny-llama"
PROGRAM = Path(__file__).with_name("researcher.py")
LIMIT_S = 200


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the program printed, by where it ran."""
    folder = tmp_path_factory.mktemp("scripts")
    ours = ["-m", "tinkex.alias", str(PROGRAM)]
    with live_server(folder / "server", "--model", MODEL) as server, ThreadPoolExecutor() as pool:
        running = {
            "official": pool.submit(run, "official", [str(PROGRAM)], server.url, folder),
            "tinkex": pool.submit(run, "tinkex", ours, server.url, folder),
            "local": pool.submit(run, "tinkex", ours, "local", folder),
        }
        return {where: future.result() for where, future in running.items()}


def run(sdk: str, words: list[str], address: str, folder: Path) -> list[str]:
    environ = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "2",  # as the server has, so that sums are cut alike
        "TINKER_BASE_URL": address,
        "TINKER_API_KEY": f"tml-{len(words)}",
        "TINKEX_HOME": str(folder / "local"),
        "TINKEX_MODELS": MODEL,
    }
    done = subprocess.run(
        [sys.executable, *words],
        env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    said = done.stdout.splitlines()
    assert ended_well(done.returncode, official=sdk == "official"), done.stderr[-4000:]
    assert said[-1] == "closed"
    return said[:-1]


@pytest.mark.parametrize("where", ["tinkex", "local"])
def test_a_program_for_the_official_sdk_prints_the_same_on_ours(
    printed: dict[str, list[str]], where: str
) -> None:
    assert printed[where] == printed["official"]


def test_the_program_learnt_and_caught_what_it_should(printed: dict[str, list[str]]) -> None:
    said = dict(line.split(" [", 1) for line in printed["official"])
    assert said["resumed"] == "True, True, False]"
    assert said["preferences"].startswith("0.693")
    assert "nothing" not in said["mistakes"]
    assert "OverflowError" in said["mistakes"]
    assert said["refusals"].count("'failed, user'") == 3
    assert said["refusals"].count("'refused'") == 8
    assert said["importance"].endswith("True]")
