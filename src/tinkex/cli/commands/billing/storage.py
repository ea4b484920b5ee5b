"""`tinkex billing checkpoint-storage`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.listings.csv_file import write_csv
from tinkex.cli.terminal.output import TableOutput

if TYPE_CHECKING:
    from tinkex.types import CurrentCheckpointStorageUsageResponse

_RATE = "effective_rate_usd_per_gigabyte_month"
COLUMNS = [
    _RATE,
    "project_id",
    "org_user_urn",
    "user_email",
    "user_name",
    "checkpoint_count",
    "size_bytes",
    "size_gigabytes",
    "estimated_monthly_cost_usd",
]


class CheckpointStorage(TableOutput):
    """What checkpoints take now, by project and user."""

    def __init__(self, usage: CurrentCheckpointStorageUsageResponse) -> None:
        self.usage = usage

    def to_dict(self) -> dict[str, Any]:
        return self.usage.model_dump(mode="json")

    def title(self) -> str:
        return "Current checkpoint storage" if self.usage.data else "No active checkpoint storage"

    def columns(self) -> list[str]:
        return COLUMNS

    def rows(self) -> list[list[str]]:
        priced = (_RATE, "estimated_monthly_cost_usd")
        return [
            [
                ("null" if name in priced else "") if value is None else str(value)
                for name, value in zip(COLUMNS, row, strict=True)
            ]
            for row in self.values()
        ]

    def values(self) -> list[list[Any]]:
        """The cells as values, None where the server gave none."""
        rate = self.usage.effective_rate_usd_per_gigabyte_month
        items = [item.model_dump(mode="json") for item in self.usage.data]
        return [[rate, *(item[name] for name in COLUMNS[1:])] for item in items]


@command
@click.option("--project-id", help="Only this project.")
@click.option("--csv", "csv_path", metavar="PATH", help="Write the rows as CSV ('-': stdout).")
def checkpoint_storage(
    context: CommandContext, project_id: str | None, csv_path: str | None
) -> CheckpointStorage | None:
    """Show the storage that checkpoints take now, and what it costs a month.

    Example: tinkex billing checkpoint-storage --csv storage.csv
    """
    found = context.admin.get_current_checkpoint_storage_usage(project_id)
    output = CheckpointStorage(context.wait(found))
    if csv_path is None:
        return output
    write_csv(context, csv_path, COLUMNS, output.values())
    return None
