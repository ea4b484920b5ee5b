"""What a killed process left in a folder of its own, the next one deletes; nobody else's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tinkex.engine.own_folder import OwnFolder, sweep

_PROGRAM = """
import sys
from pathlib import Path
from tinkex.engine.own_folder import OwnFolder
folder = OwnFolder("own-", Path(sys.argv[1]))
(folder.path / "weights").write_bytes(bytes(1000))
print(folder.path, flush=True)
sys.stdin.read()
"""


def _owner(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_folder_of_a_killed_process_goes_with_the_next_and_one_of_a_living_stays(
    tmp_path: Path,
) -> None:
    living, kept = _owner(tmp_path)
    killed, left = _owner(tmp_path)
    with living, killed:
        killed.kill()
        killed.wait()
        assert left.is_dir()
        with OwnFolder("own-", tmp_path) as own:
            assert sorted(tmp_path.iterdir()) == sorted([kept, own])
        assert list(tmp_path.iterdir()) == [kept]
        living.kill()
    sweep("own-", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_was_renamed_stays_and_what_is_no_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "own-file").write_text("")
    with OwnFolder("own-", tmp_path) as own:
        (own / "model").write_text("")
        own.rename(tmp_path / "model")
    sweep("own-", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "own-file"]
