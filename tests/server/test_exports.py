"""Promises of files written for clients in this process."""

from __future__ import annotations

import os
from pathlib import Path

from tinkex.server.checkpoints.exports import Exports
from tinkex.server.checkpoints.links import LINK_LIFETIME_S


def test_a_file_is_whole_keeps_its_name_and_never_meets_another(tmp_path: Path) -> None:
    exports = Exports(tmp_path / "exports")
    first = exports.write("a.tar", [b"one", b"two"])
    second = exports.write("a.tar", [b"three"])
    assert (first.read_bytes(), second.read_bytes()) == (b"onetwo", b"three")
    assert first.name == second.name == "a.tar"


def test_files_go_when_a_link_would_have_expired(tmp_path: Path) -> None:
    exports = Exports(tmp_path / "exports")
    old, young = exports.write("old", [b"x"]), exports.write("young", [b"x"])
    past = old.parent.stat().st_mtime - LINK_LIFETIME_S - 1
    os.utime(old.parent, (past, past))
    exports.sweep()
    assert not old.exists()
    assert young.exists()
