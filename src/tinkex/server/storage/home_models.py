"""Which folder a home's servers loaded each model from.

`tinkex checkpoint export` uses it to find a run's base model, even after the server has ended. It
is in the home, which only its owner can read, and no client is told.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

_FILE = "models.json"


def remember(home: Path, folders: Mapping[str, str]) -> None:
    """These are where their names say; of other names what was known stays."""
    known = _known(home)
    found = known | {name: str(Path(f).absolute()) for name, f in folders.items() if _is_model(f)}
    if found != known:
        fresh = home / f"{_FILE}.new"
        with contextlib.suppress(OSError):  # a server starts on a full disk too
            fresh.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
            os.replace(fresh, home / _FILE)


def folder_of(home: Path, name: str) -> Path | None:
    """Where the model was served from last, if it is still there."""
    folder = _known(home).get(name)
    return Path(folder) if isinstance(folder, str) and _is_model(folder) else None


def _known(home: Path) -> dict[str, str]:
    try:
        known = json.loads((home / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _is_model(folder: str) -> bool:
    return Path(folder, "config.json").is_file()
