"""The cache of the Hugging Face libraries: where it is, and which snapshot of a model to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path


def hub_cache_directory(environ: Mapping[str, str]) -> Path:
    """Where the Hugging Face libraries keep downloads, by their own rules."""
    if given := environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(given)
    home = environ.get("HF_HOME")
    root = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(home) if home else root / "huggingface") / "hub"


def find_snapshot(name: str, hub: Path, is_whole: Callable[[Path], bool]) -> Path | None:
    """The snapshot of `name` to use: `main`, else the newest, of those that are whole."""
    repository = hub / f"models--{name.replace('/', '--')}"
    snapshots = [path for path in (repository / "snapshots").glob("*") if path.is_dir()]
    snapshots.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    reference = repository / "refs" / "main"
    if reference.is_file():
        snapshots.insert(0, repository / "snapshots" / reference.read_text().strip())
    return next((path for path in snapshots if is_whole(path)), None)
