"""Exercises of audit log and billing, on both clients that offer them."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable
from typing import Any

from compat.exercises.registry import proves
from compat.world import World


def _both(method: str) -> tuple[str, str]:
    return f"RestClient.{method}", f"AdminClient.{method}"


def _quietly(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


@proves(*_both("get_audit_log"))
def _(w: World) -> None:
    path = w.fresh_state_path()
    for client in (w.rest, w.admin):
        entries = _quietly(lambda c=client: c.get_audit_log("checkpoints").result()).entries
        assert path in [entry.tinker_path for entry in entries]


@proves(*_both("get_audit_log_async"))
def _(w: World) -> None:
    assert w.fresh_state_path()
    today = datetime.datetime.now(datetime.UTC).date()
    for client in (w.rest, w.admin):
        found = _quietly(lambda c=client: w.run_audit(c, c.get_audit_log_async(day=today)))
        assert found.entries


def _window() -> tuple[datetime.datetime, datetime.datetime]:
    hour = datetime.datetime.now(datetime.UTC).replace(minute=0, second=0, microsecond=0)
    return hour - datetime.timedelta(hours=1), hour + datetime.timedelta(hours=1)


@proves(*_both("get_billing_usage"))
def _(w: World) -> None:
    w.training_logprobs(w.training)
    w.sampling.compute_logprobs(w.prompt()).result()
    for client in (w.rest, w.admin):
        usage = _quietly(lambda c=client: c.get_billing_usage(*_window()).result())
        kinds = {event.event_info.type for event in usage.data}
        assert {"training", "sampling_prefill"} <= kinds
        assert w.session_id in usage.sessions


@proves(*_both("get_billing_usage_async"))
def _(w: World) -> None:
    for client in (w.rest, w.admin):
        usage = _quietly(lambda c=client: w.run(c.get_billing_usage_async(*_window())))
        assert all(event.estimated_cost_usd is None for event in usage.data)


@proves(*_both("get_current_checkpoint_storage_usage"))
def _(w: World) -> None:
    assert w.state_path
    for client in (w.rest, w.admin):
        data = _quietly(lambda c=client: c.get_current_checkpoint_storage_usage().result()).data
        assert sum(item.size_bytes for item in data) > 0


@proves(*_both("get_current_checkpoint_storage_usage_async"))
def _(w: World) -> None:
    for client in (w.rest, w.admin):
        found = _quietly(lambda c=client: w.run(c.get_current_checkpoint_storage_usage_async("no")))
        assert found.data == []
