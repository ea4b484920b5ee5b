"""Where caches lie: the one of the Hugging Face libraries, what is in it, and ours beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

_MODEL = "models--"
"""What the folder of a model begins with."""


def own_cache_directory(environ: Mapping[str, str]) -> Path:
    """Where tinkex keeps what it can make or fetch again."""
    return _caches(environ) / "tinkex"


def hub_cache_directory(environ: Mapping[str, str]) -> Path:
    """Where the Hugging Face libraries keep downloads, by their own rules."""
    if given := environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(given)
    home = environ.get("HF_HOME")
    return (Path(home) if home else _caches(environ) / "huggingface") / "hub"


def _caches(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def models_in(hub: Path) -> Iterator[str]:
    """The name of every model that has a folder there, whole or not."""
    for repository in sorted(hub.glob(f"{_MODEL}*")):
        yield repository.name.removeprefix(_MODEL).replace("--", "/")


def find_snapshot(name: str, hub: Path, is_whole: Callable[[Path], bool]) -> Path | None:
    """The snapshot of `name` to use: `main`, else the newest, of those that are whole."""
    repository = hub / f"{_MODEL}{name.replace('/', '--')}"
    snapshots = [path for path in (repository / "snapshots").glob("*") if path.is_dir()]
    snapshots.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    reference = repository / "refs" / "main"
    if reference.is_file():
        snapshots.insert(0, repository / "snapshots" / reference.read_text().strip())
    return next((path for path in snapshots if is_whole(path)), None)
