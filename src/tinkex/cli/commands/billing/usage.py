"""`tinkex billing usage`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.listings.csv_file import STDOUT, write_csv
from tinkex.cli.terminal.output import TableOutput

if TYPE_CHECKING:
    from tinkex.types import BillingUsageEvent, BillingUsageResponse

_TOKEN_RATE = "effective_rate_usd_per_million_tokens"
_STORAGE_RATE = "effective_rate_usd_per_gigabyte_month"
_SHARED = [
    "bucket_start",
    "bucket_end",
    "base_model",
    "user_id",
    "user_name",
    "session_id",
    "project_id",
    "estimated_cost_usd",
    _TOKEN_RATE,
    _STORAGE_RATE,
]
_BY_EVENT = ["type", "token_count", "cached", "count", "gigabyte_hours"]


class BillingUsage(TableOutput):
    """Usage, one row per hour and kind."""

    def __init__(self, usage: BillingUsageResponse) -> None:
        self.usage = usage

    def to_dict(self) -> dict[str, Any]:
        return self.usage.model_dump(mode="json")

    def title(self) -> str:
        count = len(self.usage.data)
        if count == 0:
            return "No billing usage in this window"
        return f"{count} hourly usage row{'' if count == 1 else 's'}"

    def columns(self) -> list[str]:
        return [*_SHARED, *_BY_EVENT]

    def rows(self) -> list[list[str]]:
        return [self._row(event) for event in self.usage.data]

    def _row(self, event: BillingUsageEvent) -> list[str]:
        cells = flat(event)
        return [_shown(name, cells[name], cells["type"]) for name in self.columns()]


def flat(event: BillingUsageEvent) -> dict[str, Any]:
    """An event as one row: its own fields and those of what was used."""
    values = event.model_dump(mode="json")
    values.update(values.pop("event_info"))
    return {name: values.get(name) for name in [*_SHARED, *_BY_EVENT]}


def _shown(name: str, value: Any, kind: str) -> str:
    """Blank where a field does not apply; `null` where a cost or rate applies but is unknown."""
    if value is not None:
        return str(value)
    rate = _STORAGE_RATE if kind == "storage" else _TOKEN_RATE
    priced = kind != "checkpoint" and name in ("estimated_cost_usd", rate)
    return "null" if priced else ""


class Timestamp(click.ParamType):  # type: ignore[type-arg]  # older click has no type argument
    """An RFC 3339 time on a full hour of UTC."""

    name = "timestamp"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not a time: write 2026-07-13T00:00:00Z", param, ctx)
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        if (moment.minute, moment.second, moment.microsecond) != (0, 0, 0):
            self.fail(f"{value!r} is not on a full hour of UTC", param, ctx)
        return moment


@command
@click.argument("starting_on", type=Timestamp())
@click.argument("ending_before", type=Timestamp())
@click.option("--csv", "csv_path", metavar="PATH", help="Write the rows as CSV ('-': stdout).")
@click.option(
    "--sessions-csv",
    "sessions_path",
    metavar="PATH",
    help="Write the sessions' metadata as CSV ('-': stdout).",
)
def usage(
    context: CommandContext,
    starting_on: datetime,
    ending_before: datetime,
    csv_path: str | None,
    sessions_path: str | None,
) -> BillingUsage | None:
    """Show usage by the hour, from STARTING_ON to before ENDING_BEFORE.

    Both are times on a full hour of UTC, such as 2026-07-13T00:00:00Z, at most 14 days apart. Costs
    are estimates; one that applies but is not known is shown as null. With a CSV option the rows go
    to that file instead.

    Example: tinkex billing usage 2026-07-13T00:00:00Z 2026-07-14T00:00:00Z
    """
    if not starting_on < ending_before:
        raise click.UsageError("STARTING_ON must be earlier than ENDING_BEFORE.")
    if csv_path == sessions_path == STDOUT:
        raise click.UsageError("Only one of --csv and --sessions-csv can be '-'.")
    found = context.wait(context.admin.get_billing_usage(starting_on, ending_before))
    if csv_path is None and sessions_path is None:
        return BillingUsage(found)
    if csv_path is not None:
        rows = [list(flat(event).values()) for event in found.data]
        write_csv(context, csv_path, [*_SHARED, *_BY_EVENT], rows)
    if sessions_path is not None:
        _write_sessions(context, sessions_path, found)
    return None


def _write_sessions(context: CommandContext, path: str, found: BillingUsageResponse) -> None:
    rows = [
        [session_id, json.dumps(session.user_metadata or {})]
        for session_id, session in found.sessions.items()
    ]
    write_csv(context, path, ["session_id", "user_metadata"], rows)
