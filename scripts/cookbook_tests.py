"""Run the public cookbook's own test suite with the official SDK and with ours, and compare.

    python scripts/cookbook_tests.py [pytest arguments]

The tests are in the cookbook's source archive, not in its wheel: it is fetched from the package
index into a temporary folder. Fails when a test that passes with the official SDK does not with
ours. Tests that need a hub, a network or another package fail or are skipped with both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from importlib.metadata import version
from pathlib import Path

SDKS = {"official": [], "ours": ["-m", "tinkex.alias"]}
TESTS = ["tinker_cookbook", "tests/downstream_compat"]


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as temporary:
        source = fetched(Path(temporary))
        results = {name: outcomes(source, name, arguments) for name in SDKS}
    for name, found in results.items():
        print(f"{name}: {dict(Counter(found.values()))}")
    worse = [
        test
        for test, outcome in results["official"].items()
        if outcome == "passed" and results["ours"].get(test) != "passed"
    ]
    print("\n".join(f"only with the official SDK: {test}" for test in worse) or "no difference")
    return 1 if worse or "passed" not in results["ours"].values() else 0


def fetched(folder: Path) -> Path:
    """The cookbook's source tree, of the version that is installed."""
    name = f"tinker_cookbook=={version('tinker_cookbook')}"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    subprocess.run([*pip, "--no-binary", "tinker_cookbook", name], check=True)
    archive = next(folder.glob("*.tar.gz"))
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def outcomes(source: Path, sdk: str, arguments: list[str]) -> dict[str, str]:
    """Test -> passed, skipped or failed."""
    report = source / f"{sdk}.xml"
    command = [sys.executable, *SDKS[sdk], "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    options = ["--continue-on-collection-errors", f"--junitxml={report}"]
    environ = {**os.environ, "PYTHONPATH": str(source), "HF_HUB_OFFLINE": "1"}
    tests = [*TESTS, *arguments]
    subprocess.run([*command, *options, *tests], cwd=source, env=environ, capture_output=True)
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return {f"{case.get('classname')}::{case.get('name')}": outcome(case) for case in cases}


def outcome(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    if kinds & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in kinds else "passed"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
