"""Which tinkex this is: version, commit and the versions of what it runs on.

Reads the installed package's metadata from disk; `importlib.metadata` alone would take longer to
import than the whole command may take, so it is only the fallback. Imports no parser library.
"""

from __future__ import annotations

import os
import sys

from tinkex.cli.line.arguments import Tokens

RUNTIME_DEPENDENCIES = (
    "click",
    "numpy",
    "protobuf",
    "pydantic",
    "pyqwest",
    "rich",
    "tokenizers",
    "zstandard",
)
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SHORT = 7  # digits of a commit that are shown


def quick_version(tokens: Tokens) -> str | None:
    """The answer to `version` with its own options only; None when a full parser is needed."""
    deps = False
    while (word := tokens.next_word()) is not None:
        if word != "--deps":
            tokens.put_back(word)
            return None
        deps = True
    chosen = "json" if tokens.options.get("json") else tokens.options.get("format", "table")
    if chosen not in ("table", "json"):
        return None
    return version_json(deps) if chosen == "json" else version_text(deps)


def version_text(deps: bool) -> str:
    """`tinkex <version> (<commit>)`, then one `name - version` line per dependency if asked."""
    commit = installed_commit()
    lines = [f"tinkex {installed_version('tinkex') or 'unknown'}{f' ({commit})' if commit else ''}"]
    if deps:
        lines += [f"{n} - {installed_version(n) or 'unknown'}" for n in RUNTIME_DEPENDENCIES]
    return "\n".join(lines) + "\n"


def version_json(deps: bool) -> str:
    """The same as JSON: `version`, `commit` (null when unknown), and `deps` if asked."""
    import json

    return json.dumps(version_facts(deps), indent=2) + "\n"


def version_facts(deps: bool) -> dict[str, object]:
    """What `version_json` prints, as a dictionary."""
    facts: dict[str, object] = {
        "version": installed_version("tinkex") or "unknown",
        "commit": installed_commit(),
    }
    if deps:
        facts["deps"] = {name: installed_version(name) for name in RUNTIME_DEPENDENCIES}
    return facts


def installed_version(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    folder = _metadata_folder(name)
    if folder is not None:
        with open(os.path.join(folder, "METADATA"), encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("Version:"):
                    return line.removeprefix("Version:").strip()
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_commit() -> str | None:
    """The short commit this package was built from, or is checked out at; None elsewhere."""
    return _commit_of_install() or _commit_of_checkout()


def _commit_of_install() -> str | None:
    """The commit that pip records when it installs straight from version control.

    The record counts for the package that lies beside it, not for a copy elsewhere.
    """
    folder = _metadata_folder("tinkex")
    if folder is None or os.path.abspath(os.path.dirname(folder)) != os.path.dirname(_PACKAGE):
        return None
    text = _read(os.path.join(folder, "direct_url.json"))
    if "vcs_info" not in text:
        return None
    import json

    commit = json.loads(text)["vcs_info"].get("commit_id")
    return commit[:_SHORT] if isinstance(commit, str) else None


def _commit_of_checkout() -> str | None:
    """The commit of the work tree whose `src/tinkex` this package is.

    A package installed in, or copied into, some other project's work tree is not part of it, so
    only a tree counts that has our layout and says that it is ours.
    """
    source, root = os.path.dirname(_PACKAGE), os.path.dirname(os.path.dirname(_PACKAGE))
    ours = '\nname = "tinkex"\n' in _read(os.path.join(root, "pyproject.toml"))
    if os.path.basename(source) != "src" or not ours:
        return None
    return _head(os.path.join(root, ".git"))


def _head(git: str) -> str | None:
    """The commit a repository is at. Read from its files: starting git would take longer than all
    the rest of the command."""
    head = _read(os.path.join(git, "HEAD")).strip()
    if head.startswith("ref: "):
        name = head.removeprefix("ref: ")
        head = _read(os.path.join(git, *name.split("/"))).strip() or _packed(git, name)
    return head[:_SHORT] if len(head) >= 40 else None


def _packed(git: str, name: str) -> str:
    for line in _read(os.path.join(git, "packed-refs")).splitlines():
        if line.endswith(f" {name}"):
            return line.partition(" ")[0]
    return ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _metadata_folder(name: str) -> str | None:
    prefix = name.lower().replace("-", "_") + "-"
    for entry in sys.path:
        try:
            names = os.listdir(entry or ".")
        except OSError:
            continue
        for found in names:
            if found.endswith(".dist-info") and found.lower().startswith(prefix):
                return os.path.join(entry or ".", found)
    return None
