"""The page's files, read from the package, compressed once and named by what they contain.

All files share one version, a hash over all of them, which is part of their address: they may be
kept for ever, and a new release is a new address.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from tinkex.server.dashboard.linking import link

FOLDER = "page"
ASSETS_PATH = "/page"
TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
_INDEX = "index.html"
_ENTRY = "main.js"
_BASE = b"{base}"
_PRELOADS = b"<!-- modules -->"
_GZIP = 31  # of `zlib`: the largest window, with the header and checksum of gzip


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it is sent: as it is, or compressed."""

    content_type: str
    body: bytes
    compressed: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class Assets:
    """The whole page. `index` names all other files below `{ASSETS_PATH}/{version}/`."""

    version: str
    index: Asset
    files: dict[str, Asset]


@cache
def load() -> Assets:
    """Read and compress everything, the first time somebody asks."""
    found = _linked(dict(_read(resources.files(__package__) / FOLDER)))
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(f"{name}\0{len(found[name])}\0".encode() + found[name])
    version = digest.hexdigest()[:16]
    base = f"{ASSETS_PATH}/{version}"
    index = (
        found.pop(_INDEX).replace(_PRELOADS, _preloads(base, found)).replace(_BASE, base.encode())
    )
    files = {name: _asset(name, body) for name, body in found.items()}
    return Assets(version, _asset(_INDEX, index), files)


def _read(folder: Traversable, prefix: str = "") -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _read(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in TYPES:
            found.append((prefix + entry.name, entry.read_bytes()))
    return found


def _linked(files: dict[str, bytes]) -> dict[str, bytes]:
    """The page's own modules as one; everything else as it is."""
    own = {name for name in files if name.endswith(".js") and not _is_apart(name)}
    page = link({name: files[name].decode() for name in own}, _ENTRY).encode()
    return {**{name: body for name, body in files.items() if name not in own}, _ENTRY: page}


def _is_apart(name: str) -> bool:
    """Libraries, and scripts that are no modules."""
    return name.startswith("vendor/") or ".classic." in name


def _preloads(base: str, files: dict[str, bytes]) -> bytes:
    """Modules are fetched together, not one after the other as imports are found."""
    modules = [name for name in sorted(files) if name.endswith(".js") and ".classic." not in name]
    links = [f'<link rel="modulepreload" href="{base}/{name}">' for name in modules]
    return "\n".join(links).encode()


def _asset(name: str, body: bytes) -> Asset:
    content_type = TYPES[name.rpartition(".")[2]]
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return Asset(content_type, body, zlib.compress(body, 9, wbits=_GZIP), etag)
