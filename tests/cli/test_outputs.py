"""Every result, as a table, as JSON, in a pipe and on a terminal, against stored outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from support.command_line import (
    NOW,
    CommandLine,
    FakeClients,
    FakeRest,
    checkpoint,
    done,
    training_run,
)
from support.json_shape import mismatches, shapes
from tinkex import types

RUN = training_run(
    1,
    last_checkpoint=checkpoint(3),
    last_sampler_checkpoint=checkpoint(2, kind="sampler_weights"),
    user_metadata={"purpose": "a \x1b[31mred\x1b[0m herring"},
)


def rest() -> FakeRest:
    checkpoints = [
        checkpoint(1, public=True, user_metadata={"step": "10"}),
        checkpoint(30, kind="sampler_weights", expires_at=NOW + timedelta(days=3)),
        checkpoint(2000, run="run-2", kind="external_weights", size_bytes=None),
    ]
    runs = [RUN, training_run(40, is_lora=False, lora_rank=None, corrupted=True)]
    found = FakeRest(checkpoints, runs)
    found.whoami = lambda: done(
        types.WhoamiResponse(user_urn="tml:user:1", org_urn="tml:organization:2", email=None)
    )
    found.export_session_trace = lambda _id: done("https://host/trace?sig=1")
    return found


def admin() -> Any:
    hour = {"bucket_start": NOW, "bucket_end": NOW + timedelta(hours=1)}
    usage = types.BillingUsageResponse(
        data=[
            types.BillingUsageEvent(
                **hour,
                base_model="org/model-8b",
                session_id="s1",
                estimated_cost_usd=0.25,
                effective_rate_usd_per_million_tokens=1.5,
                event_info=types.TrainingBillingEvent(token_count=1000),
            ),
            types.BillingUsageEvent(
                **hour, event_info=types.StorageBillingEvent(gigabyte_hours=2.5)
            ),
            types.BillingUsageEvent(
                **hour, event_info=types.SamplingPrefillBillingEvent(cached=True, token_count=7)
            ),
        ],
        sessions={"s1": types.BillingUsageSession(user_metadata={"team": "a"})},
        cost_data_through=NOW,
    )
    storage = types.CurrentCheckpointStorageUsageResponse(
        effective_rate_usd_per_gigabyte_month=0.1,
        data=[
            types.CurrentCheckpointStorageUsageItem(
                project_id="p", checkpoint_count=2, size_bytes=10**9, size_gigabytes=1.0
            )
        ],
    )
    return SimpleNamespace(
        get_billing_usage=lambda _start, _end: done(usage),
        get_current_checkpoint_storage_usage=lambda _project: done(storage),
    )


def service() -> Any:
    models = [
        types.SupportedModel(
            model_name="org/model-8b", max_context_length=4096, trainable=True, sampleable=True
        ),
        types.SupportedModel(model_name="org/other"),
    ]
    capabilities = types.GetServerCapabilitiesResponse(supported_models=models)
    return SimpleNamespace(get_server_capabilities=lambda: capabilities)


WINDOW = ("2026-01-31T12:00:00Z", "2026-01-31T13:00:00Z")
PATH = "tinker://run-1/weights/0001"
LINES: dict[str, tuple[str, ...]] = {
    "checkpoint-list": ("checkpoint", "list"),
    "checkpoint-list-run": ("checkpoint", "list", "--run-id", "run-1"),
    "checkpoint-list-more": ("checkpoint", "list", "--limit", "1"),
    "checkpoint-list-none": ("checkpoint", "list", "--offset", "9"),
    "checkpoint-info": ("checkpoint", "info", PATH),
    "checkpoint-publish": ("checkpoint", "publish", PATH),
    "checkpoint-unpublish": ("checkpoint", "unpublish", PATH),
    "checkpoint-set-ttl": ("checkpoint", "set-ttl", PATH, "--ttl", "86400"),
    "checkpoint-set-ttl-remove": ("checkpoint", "set-ttl", PATH, "--remove"),
    "checkpoint-delete": ("checkpoint", "delete", PATH, "tinker://run-9/weights/x", "--yes"),
    "checkpoint-delete-nothing": (
        "checkpoint", "delete", "--run-id", "run-1", "--before", "2020-01-01", "-y",
    ),
    "run-list": ("run", "list"),
    "run-list-columns": ("run", "list", "-c", "id,checkpoint,checkpoint_time", "--limit", "1"),
    "run-info": ("run", "info", "run-1"),
    "model-list": ("model", "list"),
    "model-list-substring": ("model", "list", "MODEL-8"),
    "auth-status": ("auth", "status"),
    "auth-whoami": ("auth", "whoami"),
    "session-url": ("session", "export-trace", "s1", "--url-only"),
    "billing-usage": ("billing", "usage", *WINDOW),
    "billing-usage-csv": ("billing", "usage", *WINDOW, "--csv", "-"),
    "billing-sessions-csv": ("billing", "usage", *WINDOW, "--sessions-csv", "-"),
    "billing-storage": ("billing", "checkpoint-storage"),
    "billing-storage-csv": ("billing", "checkpoint-storage", "--csv", "-"),
}  # fmt: skip
CSV = [name for name in LINES if name.endswith("-csv")]


def command_line(terminal: bool = False) -> CommandLine:
    return CommandLine(FakeClients(rest(), admin(), service()), terminal=terminal)


@pytest.mark.parametrize("name", LINES)
def test_in_a_pipe_results_are_plain_and_stable(
    name: str, matches_stored: Callable[[str, str], None]
) -> None:
    ran = command_line()(*LINES[name])
    assert "\x1b" not in ran.out
    matches_stored(name, f"{ran.out}--- {ran.code}\n{ran.err}")


@pytest.mark.parametrize("name", [name for name in LINES if name not in CSV])
def test_json_mode_prints_nothing_but_json(
    name: str, matches_stored: Callable[[str, str], None]
) -> None:
    ran = command_line()(*LINES[name], "--json")
    words = " ".join(word for word in LINES[name][:2])
    assert mismatches(json.loads(ran.out), shapes()[words]) == []
    assert ran.err == ""
    matches_stored(f"{name}-json", ran.out)


@pytest.mark.parametrize("name", ["checkpoint-list-more", "run-info", "auth-whoami", "model-list"])
def test_on_a_terminal_tables_have_boxes_and_colours(
    name: str, matches_stored: Callable[[str, str], None]
) -> None:
    ran = command_line(terminal=True)(*LINES[name])
    assert "┃" in ran.out
    assert "\x1b[96m" in ran.out
    matches_stored(f"{name}-terminal", ran.out)


@pytest.mark.parametrize("columns", ["110", "60"])
def test_no_color_is_respected(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert "\x1b[" in command_line(terminal=True)("run", "list").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[96m" not in command_line(terminal=True)("run", "list").out


def test_columns_that_do_not_fit_are_left_out(
    monkeypatch: pytest.MonkeyPatch, matches_stored: Callable[[str, str], None]
) -> None:
    monkeypatch.setenv("COLUMNS", "56")
    matches_stored("run-list-narrow", command_line(terminal=True)("run", "list").out)


@pytest.mark.parametrize("columns", ["20", "40"])
def test_a_narrow_terminal_gets_one_line_per_cell(
    columns: str, monkeypatch: pytest.MonkeyPatch, matches_stored: Callable[[str, str], None]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    ran = command_line(terminal=True)("checkpoint", "list", "--limit", "1")
    assert "tinker://run-1/weights/0001" in ran.out
    matches_stored(f"checkpoint-list-{columns}-columns", ran.out)


SESSION = "1f3a90cc-4a52-4d5b-9d0e-7f1b2c3d4e5f"


def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """An 80-column terminal before our server, whose ids are long."""
    monkeypatch.setenv("COLUMNS", "80")
    run_id, model = f"{SESSION}:train:0", "HuggingFaceTB/SmolLM2-135M-Instruct"
    added = {"name": "lr 3e-4", "state": "live", "step": 120, "last_loss": 1.23456}
    more = {"tokens": 123456, "created_at": NOW - timedelta(days=2), "base_model": model}
    runs = [training_run(1, training_run_id=run_id, **added, **more)]
    saved = [
        checkpoint(n, run=run_id, kind="sampler_weights", base_model=model, step=60 * n)
        for n in (1, 2)
    ]
    return CommandLine(FakeClients(FakeRest(saved, runs)), terminal=True)


@pytest.mark.parametrize(
    ("name", "line"),
    {
        "run-list-80": ("run", "list"),
        "run-info-80": ("run", "info", SESSION[:4]),
        "checkpoint-list-80": ("checkpoint", "list"),
        "checkpoint-info-80": (
            "checkpoint", "info", f"tinker://{SESSION}:train:0/sampler_weights/0001",
        ),
    }.items(),
)  # fmt: skip
def test_eighty_columns_are_enough_for_long_ids_and_whole_paths(
    name: str,
    line: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    matches_stored: Callable[[str, str], None],
) -> None:
    ran = eighty_columns(monkeypatch)(*line)
    assert ran.code == 0, ran.err
    plain = re.sub(r"\x1b\[\d+m", "", ran.out)
    wide = [row for row in plain.splitlines() if len(row) > 80]
    assert all(row.split()[-1].startswith("tinker://") for row in wide)
    matches_stored(name, ran.out)


def test_text_from_a_server_cannot_drive_the_terminal() -> None:
    assert "\x1b[31m" not in command_line(terminal=True)("run", "info", "run-1").out
