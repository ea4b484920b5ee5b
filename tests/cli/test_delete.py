"""Deleting: what is asked, what is refused, what happens to the rest when one fails."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from support.command_line import (
    NOW,
    CommandLine,
    FakeClients,
    FakeRest,
    Ran,
    checkpoint,
    training_run,
)

PATH = "tinker://run-1/weights/0001"


def rest() -> FakeRest:
    kinds = ["weights", "sampler_weights", "external_weights", "weights"]
    saved = [checkpoint(n + 1, kind=kind) for n, kind in enumerate(kinds)]
    return FakeRest(saved, [training_run(1)])


def delete(found: FakeRest, *flags: str, typed: str = "", person: bool = True) -> Ran:
    line = CommandLine(FakeClients(found), typed=typed, interactive=person)
    return line("checkpoint", "delete", *flags)


def test_what_will_go_is_shown_and_confirmed() -> None:
    found = rest()
    ran = delete(found, "--run-id", "run-1", "--type", "training", typed="y\n")
    assert ran.code == 0
    assert ran.out == "Deleted 2 checkpoints\n"
    assert "Will delete 2 checkpoints:" in ran.err
    facts = "training, 1.0 MB, created 60 minutes ago, private, never expires"
    assert f"  - {PATH}\n    {facts}\n" in ran.err
    assert "Total size: 5.0 MB" in ran.err
    assert "WARNING: This action is permanent and cannot be undone." in ran.err
    assert len(found.checkpoints) == 2


def test_a_named_checkpoint_is_shown_with_all_that_is_known_of_it() -> None:
    found = rest()
    found.checkpoints[0] = checkpoint(1, public=True, expires_at=NOW + timedelta(days=3))
    ran = delete(found, PATH, typed="y\n")
    assert ran.code == 0
    facts = "training, 1.0 MB, created 60 minutes ago, public: others use it, expires in 3 days"
    assert f"  - {PATH}\n    {facts}\n" in ran.err


def test_a_checkpoint_that_does_not_exist_is_said_before_asking() -> None:
    found = rest()
    ran = delete(found, PATH, "tinker://run-1/weights/none", typed="y\n")
    assert ran.code == 1
    assert (
        "Error: Checkpoint not found: tinker://run-1/weights/none\nNothing was deleted" in ran.err
    )
    assert "Are you sure" not in ran.err
    assert len(found.checkpoints) == 4


@pytest.mark.parametrize("typed", ["n\n", "\n", "nope\n"])
def test_anything_but_yes_deletes_nothing(typed: str) -> None:
    found = rest()
    ran = delete(found, PATH, typed=typed)
    assert ran.code == 0
    assert ran.out == "Deletion cancelled.\n"
    assert len(found.checkpoints) == 4


def test_the_end_of_input_aborts() -> None:
    found = rest()
    ran = delete(found, PATH, typed="")
    assert ran.code == 1
    assert ran.err.endswith("Error: Aborted.\n")
    assert len(found.checkpoints) == 4


@pytest.mark.parametrize(("flags", "person"), [((), False), (("--json",), True)])
def test_nobody_to_ask_means_no(flags: tuple[str, ...], person: bool) -> None:
    found = rest()
    ran = delete(found, PATH, *flags, person=person, typed="y\n")
    assert ran.code == 2
    assert "add --yes" in ran.err
    assert found.calls == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "Must specify checkpoint paths or --run-id"),
        ([PATH, "--run-id", "r"], "Cannot specify both checkpoint paths and --run-id"),
        ([PATH, "--type", "weights"], "--type, --before, and --after require --run-id"),
        (["--run-id", "r", "--type", "odd"], "Invalid checkpoint type: odd"),
        (["--run-id", "r", "--before", "soon"], "Invalid date: soon"),
        ([PATH, "nonsense"], "Invalid checkpoint path: nonsense"),
    ],
)
def test_a_wrong_selection_changes_nothing(flags: list[str], words: str) -> None:
    found = rest()
    ran = delete(found, *flags, "--yes")
    assert ran.code == 2
    assert f"Error: {words}" in ran.err
    assert len(found.checkpoints) == 4


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        (["--before", "2026-01-31T09:00:00Z"], [1, 2, 3]),
        (["--after", "2026-01-31T10:00:00"], [2, 3, 4]),
        (["--after", "2026-01-31", "--type", "sampler"], [1, 3, 4]),
    ],
)
def test_filters_are_strict_bounds_in_utc(flags: list[str], left: list[int]) -> None:
    found = rest()
    assert delete(found, "--run-id", "run-1", "-y", *flags).code == 0
    assert [int(c.checkpoint_id[-4:]) for c in found.checkpoints] == left


def test_one_failure_does_not_stop_the_others_but_shows() -> None:
    found = rest()
    ran = delete(found, "tinker://run-1/weights/none", PATH, "--yes", "--json")
    assert ran.code == 1
    assert json.loads(ran.out) == {
        "deleted_count": 1,
        "failed": [
            {
                "tinker_path": "tinker://run-1/weights/none",
                "error": "boom",
            }
        ],
    }


@pytest.mark.parametrize(("typed", "calls"), [("y\n", 1), ("n\n", 0)])
def test_unpublishing_asks_a_person(typed: str, calls: int) -> None:
    found = rest()
    line = CommandLine(FakeClients(found), typed=typed, interactive=True)
    assert line("checkpoint", "unpublish", PATH).code == 0
    assert len([call for call in found.calls if call[0] == "unpublish"]) == calls


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([PATH], "Must specify either --ttl <seconds> or --remove"),
        ([PATH, "--ttl", "5", "--remove"], "Cannot specify both --ttl and --remove"),
        ([PATH, "--ttl", "0"], "is not a time above zero"),
        (["nonsense", "--remove"], "Invalid checkpoint path: nonsense"),
    ],
)
def test_a_wrong_expiry_changes_nothing(flags: list[str], words: str) -> None:
    found = rest()
    ran = CommandLine(FakeClients(found))("checkpoint", "set-ttl", *flags)
    assert ran.code == 2
    assert words in ran.err
    assert found.calls == []


@pytest.mark.parametrize(
    ("typed", "seconds"), [("1d", 86400), ("2w", 1209600), ("90m", 5400), ("30", 30), ("1.5s", 2)]
)
def test_an_expiry_is_typed_in_any_unit(typed: str, seconds: int) -> None:
    found = rest()
    ran = CommandLine(FakeClients(found))("checkpoint", "set-ttl", PATH, "--ttl", typed)
    assert ran.code == 0, ran.err
    assert ("ttl", PATH, seconds) in found.calls


@pytest.mark.parametrize("command", ["info", "publish", "unpublish", "download"])
def test_a_path_of_another_form_is_refused_before_any_request(command: str) -> None:
    found = rest()
    ran = CommandLine(FakeClients(found))("checkpoint", command, "run-1/weights/0001")
    assert ran.code == 2
    assert ran.err.startswith("Error: Invalid checkpoint path: run-1/weights/0001\n")
    assert found.calls == []


def test_info_about_nothing_says_where_to_look() -> None:
    ran = CommandLine(FakeClients(rest()))("checkpoint", "info", "tinker://run-1/weights/none")
    assert ran.code == 1
    assert "Checkpoint not found: tinker://run-1/weights/none" in ran.err
    assert "tinkex checkpoint list --run-id run-1" in ran.err
