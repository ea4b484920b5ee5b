"""The folder a download grows in, beside where it will be.

The target appears in one step, complete. After a cut the staging folder stays, so that the same
command continues; after anything else it goes.
"""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

from tinkex.cli.errors import CliError
from tinkex.cli.transfer.parts import Tags
from tinkex.cli.whole_file import write_whole

_TAGS = "tags.json"


class Staging:
    """`<target>`'s place of growth, `.<target>.partial`."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = target.with_name(f".{target.name}.partial")
        self.files = self.folder / "files"
        self.archive = self.folder / "archive.tar"
        self._lock = threading.Lock()

    def open(self) -> None:
        """Makes the folder, or finds what an earlier download left."""
        try:
            self.files.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CliError(
                f"Cannot write to {self.target.parent}", f"Details: {error}", "Choose: --output DIR"
            ) from error

    def tags(self) -> Tags:
        """Entity tags that survive until the next try."""
        return Tags(lambda name: self._known().get(name), self._remember)

    def commit(self) -> None:
        """Puts the finished files where they belong, replacing what was there."""
        old = self.target.with_name(f".{self.target.name}.replaced")
        shutil.rmtree(old, ignore_errors=True)
        if self.target.exists():
            self.target.rename(old)
        self.files.rename(self.target)
        shutil.rmtree(old, ignore_errors=True)
        self.discard()

    def discard(self) -> None:
        """Leaves nothing."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def discard_if_empty(self) -> None:
        """Leaves nothing if nothing has arrived that could be continued."""
        if not any(self.files.iterdir()) and not self.archive.exists():
            self.discard()

    def _known(self) -> dict[str, str]:
        try:
            known = json.loads((self.folder / _TAGS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def _remember(self, name: str, tag: str) -> None:
        with self._lock:
            known = self._known()
            if known.get(name) != tag:
                write_whole(self.folder / _TAGS, json.dumps({**known, name: tag}))
