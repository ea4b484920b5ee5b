"""Promises of pages and search."""

from __future__ import annotations

import pytest

from tinkex.server.storage.database import listing, runs, sessions
from tinkex.server.storage.database.connections import Connection
from tinkex.server.storage.database.listing import Search


@pytest.fixture
def db(empty: Connection) -> Connection:
    connection = empty
    for number, (tenant, name, status, reason) in enumerate(
        [
            ("alice", "Sweep one", "active", None),
            ("alice", "sweep TWO", "finished", "errored"),
            ("bob", "sweep one", "finished", "success"),
            ("alice", None, "expired", None),
        ]
    ):
        row = sessions.SessionRow(
            f"s{number}",
            tenant,
            float(number),
            float(number),
            user_metadata={"k": "v" if number < 2 else "w"},
            project_id=f"p{number % 2}",
            display_name=name,
        )
        sessions.insert(connection, row)
        if status != "active":
            sessions.end(connection, row.session_id, status, reason, None, 9.0)
        runs.insert(
            connection,
            runs.RunRow(f"s{number}:train:0", f"s{number}", tenant, "m", "adamw", 1.0, number),
        )
    return connection


def found(db: Connection, search: Search) -> list[str]:
    return [row.session_id for row in listing.search_sessions(db, "alice", search)]


def test_search_shows_ones_own_newest_first(db: Connection) -> None:
    assert found(db, Search(10)) == ["s3", "s1", "s0"]


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        (Search(10, display_name="ONE sweep"), ["s0"]),
        (Search(10, display_name="sweep"), ["s1", "s0"]),
        (Search(10, session_id="s3", display_name="two"), ["s3", "s1"]),
        (Search(10, session_id="s2"), []),
        (Search(10, user_metadata={"k": "v"}), ["s1", "s0"]),
        (Search(10, user_metadata={"k": "v", "x": "y"}), []),
        (Search(10, project_ids=["p1"]), ["s3", "s1"]),
        (Search(10, project_ids=[]), []),
        (Search(10, statuses=[("active", None)]), ["s0"]),
        (Search(10, statuses=[("finished", ["success"])]), []),
        (Search(10, statuses=[("finished", ["errored"]), ("expired", None)]), ["s3", "s1"]),
        (Search(10, owners=["bob"]), []),
        (Search(1), ["s3"]),
        (Search(10, before=(3.0, "s3")), ["s1", "s0"]),
        (Search(10, display_name="100% o'clock \"x"), []),
    ],
)
def test_search_filters(db: Connection, search: Search, expected: list[str]) -> None:
    assert found(db, search) == expected


def test_any_text_is_kept_and_found_and_keeps_nobody_from_finding_theirs(db: Connection) -> None:
    """PostgreSQL has no NUL in texts and no halves of characters in JSON."""
    wild = {"k": "v", "nul\0key": "a\0b\\u0000\U0010fffe", "half": "\ud800"}
    row = sessions.SessionRow("s9", "alice", 9.0, 9.0, user_metadata=wild, display_name="x\0 y")
    sessions.insert(db, row)
    found_again = next(each for each in sessions.active(db) if each.session_id == "s9")
    assert (found_again.user_metadata, found_again.display_name) == (wild, "x\0 y")
    assert found(db, Search(10, display_name="x\0")) == ["s9"]
    assert found(db, Search(10, user_metadata={"k": "v"}))[-2:] == ["s1", "s0"]


def test_others_appear_only_with_what_they_published(db: Connection) -> None:
    assert listing.run_page(db, "alice", 10, 0, accessible=True)[1] == 3
    db.execute(
        """INSERT INTO checkpoints (path, model_id, session_id, tenant, kind, name, folder,
            base_model, rank, train_attn, train_mlp, train_unembed, optimizer, step, size_bytes,
            public, created_at) VALUES ('t', 's2:train:0', 's2', 'bob', 'weights', 'a', 'f', 'm',
            1, 1, 1, 1, 'adamw', 1, 1, 1, 1.0)"""
    )
    page, total = listing.run_page(db, "alice", 2, 0, accessible=True)
    assert (total, [row.model_id for row in page]) == (4, ["s3:train:0", "s2:train:0"])
    assert listing.run_page(db, "alice", 10, 0)[1] == 3
    assert "s2" in found(db, Search(10, accessible=True))
    assert listing.session_page(db, "alice", 2, 1, accessible=True) == ["s2", "s1"]
    assert listing.is_published(db, "model_id", "s2:train:0")
    assert not listing.is_published(db, "model_id", "s1:train:0")


def test_runs_of_a_project(db: Connection) -> None:
    page, total = listing.run_page(db, "alice", 10, 0, project_id="p1")
    assert (total, [row.model_id for row in page]) == (2, ["s3:train:0", "s1:train:0"])
    listing.set_session_project(db, "s0", "p1")
    assert listing.run_page(db, "alice", 10, 0, project_id="p1")[1] == 3
