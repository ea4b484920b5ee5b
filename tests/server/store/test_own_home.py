"""Scripts and commands find a home's rows in PostgreSQL where the environment says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinkex.server.hosting.home_cleaning import clean
from tinkex.server.hosting.own_home import own_home
from tinkex.server.sampling.unnamed_weights import Freed
from tinkex.server.storage.home import HomeTaken
from tinkex.server.storage.home_rows import WrongRows


def test_a_home_is_taken_with_its_database_by_one_at_a_time(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKEX_DATABASE", database)
    home = own_home(tmp_path / "here", {"TINKEX_DATABASE": database})
    with pytest.raises(HomeTaken):
        own_home(tmp_path / "here", {"TINKEX_DATABASE": database})
    with pytest.raises(WrongRows, match=r"in use by process .*: use that server"):
        own_home(tmp_path / "elsewhere", {"TINKEX_DATABASE": database})
    home.release()
    assert clean(tmp_path / "here") == Freed(0, 0), "tinkex home gc"
    assert not (tmp_path / "here" / "tinkex.db").exists()
    with pytest.raises(WrongRows, match="say where with"):
        own_home(tmp_path / "here", {})


@pytest.mark.parametrize(
    ("url", "said"),
    [("mysql://x", "must be postgresql://"), ("postgresql://a:secret@127.0.0.1:1/x", "PostgreSQL")],
)
def test_an_address_that_cannot_be_used_is_one_line(tmp_path: Path, url: str, said: str) -> None:
    with pytest.raises(WrongRows, match=said) as refused:
        own_home(tmp_path, {"TINKEX_DATABASE": url})
    assert "secret" not in str(refused.value)
