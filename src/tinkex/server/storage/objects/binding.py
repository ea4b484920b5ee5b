"""Which object store a home keeps its bytes in, written down on both sides.

A home never forgets its store: without it, half of what its database names would be missing. A
store's prefix belongs to one home: a second one would delete what its own database does not name.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tinkex.server.storage.objects.store import BadStore, NoSuchObject, ObjectStore, StoreDown

_FILE, _BEGUN, _OBJECT = "objects.json", "objects-begun.json", "home.json"
_LOCAL = ("payloads", "weights", "snapshots", "pins")


def bound(root: Path) -> str | None:
    """The store of a home, if it has one."""
    try:
        return str(_read(root / _FILE)["url"])
    except FileNotFoundError:
        return None


def open_objects(
    root: Path, asked: str | None, environ: Mapping[str, str] | None = None
) -> ObjectStore | None:
    """The store that a home is to use, bound to it from now on. Raises `BadStore`."""
    url = bound(root)
    if asked is not None and url is not None and asked.rstrip("/") != url:
        raise BadStore(f"{root} keeps its objects in {url}: leave --objects out, or give that")
    if asked is None and url is None:
        return None
    if url is None and _has_files(root):
        raise BadStore(
            f"{root} keeps its weights in files: move them first with "
            f"`tinkex home migrate --home {root} --objects {asked}`"
        )
    store = ObjectStore((url or asked or "").rstrip("/"), environ)
    bind(root, store)
    return store


def bind(root: Path, store: ObjectStore) -> None:
    """Make sure that home and store belong together, and write it down if they do from now on."""
    _write(root / _FILE, store.url, claim(root, store))


def claim(root: Path, store: ObjectStore) -> str:
    """Take a store for a home, or find that it has it; the name of the home there."""
    known = _identity(root)
    owner = _owner(store)
    if owner is None:
        if known is not None:  # it was written there before anything else was
            raise BadStore(
                f"{store.url} has nothing of what {root} keeps there, not even {_OBJECT}: check "
                "its bucket, endpoint or mount, or restore it from its backup"
            )
        _check_apart(root, store)
        known = secrets.token_hex(16)
        _put(store, known)
    elif owner != known:
        raise BadStore(
            f"{store.url} belongs to another home: give this one a prefix of its own, such as "
            f"{store.url}/{root.name.lstrip('.')}, or copy {_FILE} from the home it belongs to"
        )
    assert known is not None
    store.expect(_OBJECT)
    return known


def _check_apart(root: Path, store: ObjectStore) -> None:
    """A folder as a store is not where the home's own files are: each would delete the other's."""
    if not store.url.startswith("file://"):
        return
    folder, home = Path(unquote(urlsplit(store.url).path)).resolve(), root.resolve()
    if folder == home or any(folder.is_relative_to(home / name) for name in (*_LOCAL, "cache")):
        raise BadStore(f"{store.url} is where {root} has its own files: give a folder apart")


def begin(root: Path, store: ObjectStore) -> None:
    """Take a store for a home that goes on using its files until `bind`."""
    _write(root / _BEGUN, store.url, claim(root, store))


def _has_files(root: Path) -> bool:
    return any((root / name).is_dir() and any((root / name).iterdir()) for name in _LOCAL)


def _identity(root: Path) -> str | None:
    for name in (_FILE, _BEGUN):
        with contextlib.suppress(FileNotFoundError):
            return str(_read(root / name)["home"])
    return None


def _read(path: Path) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(path.read_text())
        return {name: found[name] for name in ("url", "home")}
    except (ValueError, KeyError, TypeError) as error:
        raise BadStore(f"{path} does not say where the objects are: restore it") from error


def _owner(store: ObjectStore) -> str | None:
    try:
        return str(json.loads(store.get(_OBJECT))["home"])
    except NoSuchObject:
        return None
    except StoreDown as error:
        raise BadStore(f"{store.url}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadStore(
            f"{store.url}: what answers is no object store, or {_OBJECT} in it was changed: "
            "check its endpoint (AWS_ENDPOINT_URL)"
        ) from error


def _put(store: ObjectStore, identity: str) -> None:
    try:
        store.put(_OBJECT, json.dumps({"home": identity}).encode())
    except NoSuchObject as error:
        raise BadStore(
            f"{store.url}: there is no such bucket: create it first ({error})"
        ) from error
    except StoreDown as error:
        raise BadStore(f"{store.url} cannot be written: {error}") from error


def _write(path: Path, url: str, identity: str) -> None:
    draft = path.with_name(f"{path.name}.part")
    draft.write_text(json.dumps({"url": url, "home": identity}) + "\n")
    os.replace(draft, path)
