"""Makes a folder appear complete or not at all. Knows nothing of what is written into it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path


def publish_folder(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return `folder`, having `write` fill it first if it does not exist.

    Two processes may race: each writes its own temporary folder and the first rename wins.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        write(draft)
        draft.chmod(0o755)
        os.rename(draft, folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def write_json(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
