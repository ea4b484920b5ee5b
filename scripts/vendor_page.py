"""Fetches the dashboard's libraries from the npm registry and writes them where they are served.

    python scripts/vendor_page.py

Writes `server/dashboard/page/vendor/` and `vendor.json` beside it: version, licence and the hashes
of what came and of what is served. A test compares those with the files. Run it to take a newer
version, after changing it below.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "src" / "tinkex" / "server" / "dashboard" / "page"
REGISTRY = "https://registry.npmjs.org"


@dataclass(frozen=True)
class Library:
    """A file of a package, where it goes, and the texts replaced in it: there is no build step, so
    modules name each other by relative paths, and maps of sources that we do not ship are not
    named."""

    package: str
    version: str
    path: str
    target: str
    licence: str
    replaced: tuple[tuple[str, str], ...] = ()


LIBRARIES = (
    Library(
        "preact",
        "11.2.0",
        "dist/preact.mjs",
        "preact.js",
        "MIT",
        (("//# sourceMappingURL=preact.mjs.map\n", ""),),
    ),
    Library(
        "preact",
        "11.2.0",
        "hooks/dist/hooks.mjs",
        "hooks.js",
        "MIT",
        (('from"preact"', 'from"./preact.js"'), ("//# sourceMappingURL=hooks.mjs.map\n", "")),
    ),
    Library("htm", "3.1.1", "dist/htm.mjs", "htm.js", "Apache-2.0"),
    Library("uplot", "1.6.32", "dist/uPlot.iife.min.js", "uplot.classic.js", "MIT"),
    Library("uplot", "1.6.32", "dist/uPlot.min.css", "uplot.css", "MIT"),
)


def main() -> None:
    (PAGE / "vendor").mkdir(parents=True, exist_ok=True)
    entries = [_vendor(library) for library in LIBRARIES]
    for package, version in {(library.package, library.version) for library in LIBRARIES}:
        licence = _member(package, version, "LICENSE")
        (PAGE / "vendor" / f"LICENSE-{package}.txt").write_bytes(licence)
    (PAGE / "vendor.json").write_text(json.dumps(entries, indent=1) + "\n")


def _vendor(library: Library) -> dict[str, object]:
    original = _member(library.package, library.version, library.path)
    text = original.decode()
    for old, new in library.replaced:
        if old not in text:
            raise SystemExit(f"{library.package} {library.path}: {old!r} is not in it any more")
        text = text.replace(old, new)
    served = text.encode()
    (PAGE / "vendor" / library.target).write_bytes(served)
    return {
        "file": f"vendor/{library.target}",
        "package": library.package,
        "version": library.version,
        "path": library.path,
        "licence": library.licence,
        "replaced": [list(pair) for pair in library.replaced],
        "sha256": hashlib.sha256(original).hexdigest(),
        "sha256_served": hashlib.sha256(served).hexdigest(),
    }


def _member(package: str, version: str, path: str) -> bytes:
    with urllib.request.urlopen(f"{REGISTRY}/{package}/-/{package}-{version}.tgz") as answer:
        content = io.BytesIO(answer.read())
    with tarfile.open(fileobj=content) as archive:
        member = archive.extractfile(f"package/{path}")
        assert member is not None
        return member.read()


if __name__ == "__main__":
    main()
