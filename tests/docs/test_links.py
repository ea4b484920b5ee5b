"""Every relative link in README and the documents leads to something that exists."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from support.documents import DOCS, ROOT, anchors, links, pages

GENERATED_AT_BUILD = {DOCS / "performance.md", DOCS / "modules.md"}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = [f"line {number}: {link}" for number, link in links(page) if not _exists(page, link)]
    assert not broken, f"{page.relative_to(ROOT)} has broken links: {broken}"


def test_a_broken_link_would_be_found() -> None:
    page = DOCS / "index.md"
    assert _exists(page, "getting-started.md#install")
    assert not _exists(page, "getting-started.md#no-such-heading")
    assert not _exists(page, "no-such-page.md")


def test_every_page_is_in_the_table_of_contents() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8") + _api_index()
    written = {path.relative_to(DOCS).with_suffix("") for path in pages() if DOCS in path.parents}
    missing = [str(name) for name in written if name.name != "index" and str(name) not in index]
    assert not missing, f"pages that no table of contents names: {missing}"


def _api_index() -> str:
    text = (DOCS / "api" / "index.md").read_text(encoding="utf-8")
    return "\n".join(f"api/{line}" for line in text.splitlines())


def _exists(page: Path, link: str) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True  # the network is no part of a test
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target in GENERATED_AT_BUILD:
        return True
    if not target.exists():
        return False
    return not parts.fragment or target.suffix != ".md" or parts.fragment in anchors(target)
