"""Files written for clients in this process, which cannot follow a link: there is no socket.

They are kept in the home for as long as a link would live. Knows nothing of their content.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from tinkex.server.checkpoints.links import LINK_LIFETIME_S


class Exports:
    """A folder of files that are deleted after a while. All calls block on the disk."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, name: str, content: Iterable[bytes]) -> Path:
        """A new file called `name`, complete when this returns."""
        self.sweep()
        folder = self._root / secrets.token_hex(8)
        folder.mkdir(parents=True)
        path = folder / name
        with path.open("wb") as file:
            file.writelines(content)
        return path

    def sweep(self) -> None:
        """Delete what is older than a link could be."""
        oldest = time.time() - LINK_LIFETIME_S
        for folder in self._root.glob("*"):
            if folder.stat().st_mtime < oldest:
                shutil.rmtree(folder, ignore_errors=True)
