"""Promises of the page's files: small, from here alone, kept for ever, what they say they are."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from importlib import resources
from pathlib import Path
from typing import get_args

import pytest

from support.pictures import PICTURES
from support.served import served
from tinkex.server.dashboard import assets
from tinkex.server.dashboard.linking import NotUnderstood, link
from tinkex.server.recording.advice import Kind

PAGE = resources.files("tinkex.server.dashboard") / "page"
NOT_LOADED = ("LICENSE", "vendor.json")
MOST_BYTES = 60_000
HERE = "http://127.0.0.1:8000"


def test_the_whole_page_takes_at_most_60_kb() -> None:
    found = assets.load()
    loaded = {name: file for name, file in found.files.items() if not _is_left(name)}
    size = len(found.index.compressed) + sum(len(file.compressed) for file in loaded.values())
    assert size <= MOST_BYTES, {name: len(file.compressed) for name, file in loaded.items()}


def _is_left(name: str) -> bool:
    return any(part in name for part in NOT_LOADED)


def test_libraries_are_those_whose_versions_licences_and_hashes_are_noted() -> None:
    entries = json.loads((PAGE / "vendor.json").read_text())
    folder = PAGE / "vendor"
    noted = {entry["file"] for entry in entries}
    assert noted == {
        f"vendor/{file.name}" for file in folder.iterdir() if not file.name.startswith("LICENSE")
    }
    for entry in entries:
        body = (PAGE / entry["file"]).read_bytes()
        assert hashlib.sha256(body).hexdigest() == entry["sha256_served"], entry["file"]
        assert re.fullmatch(r"\d+\.\d+\.\d+", entry["version"])
        assert entry["licence"] in ("MIT", "Apache-2.0")
        assert (folder / f"LICENSE-{entry['package']}.txt").is_file()
        text = body.decode()
        for old, new in reversed(entry["replaced"]):
            text = text.replace(new, old) if new else text + old
        assert hashlib.sha256(text.encode()).hexdigest() == entry["sha256"], entry["file"]


def test_nothing_is_inline_and_nothing_is_asked_of_others() -> None:
    index = assets.load().index.body.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", index)
    assert not re.search(r'(?:src|href)="(?!/page/)', index)
    for file in (file for file in _walk(PAGE) if file.suffix in (".js", ".css", ".html")):
        if file.parent.name != "vendor":
            text = file.read_text()
            assert "innerHTML" not in text
            assert set(re.findall(r"https?://[\w.]+", text)) <= {"https://ui.perfetto.dev"}


def _walk(folder: object) -> list[Path]:
    return [path for path in Path(str(folder)).rglob("*") if path.is_file()]


async def test_files_come_compressed_typed_guarded_and_are_kept_for_ever(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        page = await api.client.get(f"{HERE}/")
        assert page.headers["cache-control"] == "no-cache"
        again = await api.client.get(f"{HERE}/", headers={"if-none-match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        for path in re.findall(r'(?:src|href)="([^"]+)"', page.text):
            file = await api.client.get(HERE + path)
            assert file.status_code == 200, path
            assert "immutable" in file.headers["cache-control"]
            assert file.headers["content-encoding"] == "gzip"
            assert file.headers["x-content-type-options"] == "nosniff"
            policy = file.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            plain = await api.client.get(HERE + path, headers={"accept-encoding": "identity"})
            assert plain.content == file.content
        for path in ("/page/0000/main.js", "/page/../vendor.json", "/page/x/../../keys.json"):
            assert (await api.client.get(HERE + path)).status_code == 404


def test_compressed_files_are_the_same_at_every_start() -> None:
    assets.load.cache_clear()
    first = assets.load()
    assets.load.cache_clear()
    assert assets.load() == first
    assert gzip.decompress(first.index.compressed) == first.index.body


def test_modules_are_joined_in_order_each_in_a_scope_of_its_own() -> None:
    joined = link(
        {
            "main.js": 'import { one as two } from "./a.js";\nimport * as b from "./b/c.js";\n',
            "a.js": '// gone\nexport const one = 1;\nexport { h } from "./vendor/h.js";\n',
            "b/c.js": 'import { one } from "../a.js";\n  export async function f() {}\n',
        },
        "main.js",
    )
    assert joined.startswith(
        'import * as m2 from "./vendor/h.js";\nconst m1=(()=>{\nconst one = 1;'
    )
    assert "return {one,h};" in joined
    assert "const { one:two }=m1;" in joined
    assert "const b=m3;" in joined
    assert "gone" not in joined
    with pytest.raises(NotUnderstood, match="export default"):
        link({"main.js": "export default 1;"}, "main.js")


def test_every_kind_of_advice_has_a_title_on_the_page() -> None:
    text = (PAGE / "parts.js").read_text()
    titles = re.search(r"const KINDS = \{(.*?)\};", text, re.DOTALL)
    assert titles is not None
    assert set(re.findall(r"(\w+): \"", titles[1])) == set(get_args(Kind))


def test_every_picture_in_the_documents_is_one_that_the_script_takes() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    names = {f"{name}.png" for name in PICTURES}
    assert {file.name for file in (docs / "pictures").iterdir()} == names
    assert set(re.findall(r"pictures/([\w.]+)", (docs / "dashboard.md").read_text())) == names
