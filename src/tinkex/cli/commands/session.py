"""`tinkex session export-trace`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.terminal.formats import format_size
from tinkex.cli.terminal.output import LineOutput, Output, PropertyOutput


class TraceExport(PropertyOutput):
    """A trace that lies on disk."""

    def __init__(self, session_id: str, destination: Path, size: int) -> None:
        self.session_id = session_id
        self.destination = destination
        self.size = size

    def to_dict(self) -> dict[str, Any]:
        return {
            "session_id": self.session_id,
            "destination": str(self.destination),
            "file_size_bytes": self.size,
        }

    def title(self) -> str:
        return f"Trace Export: {self.session_id}"

    def rows(self) -> list[list[str]]:
        return [
            ["Session ID", self.session_id],
            ["Saved to", str(self.destination)],
            ["Size", format_size(self.size)],
        ]


class TraceUrl(LineOutput):
    """Where the trace can be fetched."""

    def __init__(self, session_id: str, url: str) -> None:
        self.session_id = session_id
        self.url = url

    def to_dict(self) -> dict[str, Any]:
        return {"session_id": self.session_id, "url": self.url}

    def lines(self) -> list[str]:
        return [self.url]


@command
@click.argument("session_id")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write (default: ./SESSION_ID.pftrace).",
)
@click.option("--url-only", is_flag=True, help="Print the address instead of downloading.")
def export_trace(
    context: CommandContext, session_id: str, output: Path | None, url_only: bool
) -> Output:
    """Download the timeline of a session, to open at ui.perfetto.dev.

    Example: tinkex session export-trace SESSION_ID -o steps.pftrace
    """
    context.narrate("Building the trace on the server...")
    url = context.wait(context.rest.export_session_trace(session_id))
    if url_only:
        return TraceUrl(session_id, url)
    destination = output or Path(f"{session_id.replace('/', '_')}.pftrace")
    return TraceExport(session_id, destination, _download(context, url, destination))


def _download(context: CommandContext, url: str, destination: Path) -> int:
    from tinkex.cli.transfer.parts import download_file

    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with context.bar("Downloading trace", None, "bytes") as bar:
            return download_file(context.source, url, destination, bar)
    except OSError as error:
        raise CliError(f"Failed to write {destination}", f"Details: {error}") from error
