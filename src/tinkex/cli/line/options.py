"""Builds commands: their parser, the options every command has, and the context they run in.

The only module, with the commands themselves, that knows the parser library.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tinkex.cli.deadline import Deadline
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.dispatch import Streams
from tinkex.cli.outside.dependencies import Connection, Dependencies
from tinkex.cli.terminal.output import Output

SHARED_TITLE = "Options of every command (explained by tinkex --help)"
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


@dataclass(frozen=True)
class Invocation:
    """What was known before the command's own options were read."""

    words: tuple[str, ...]
    root_options: dict[str, str | bool]
    deps: Dependencies
    streams: Streams
    opened: list[CommandContext]


class Folder(click.Path):
    """A folder, and not the empty text that an unset variable leaves: that would mean this one."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty: name a folder", param, ctx)
        return super().convert(value, param, ctx)


class Duration(click.ParamType):  # type: ignore[type-arg]  # older click has no type argument
    """A length of time in seconds: `500ms`, `30s`, `2m`, `1h`, `1d`, `2w`, or a bare number, which
    counts in `bare` units."""

    name = "time"

    def __init__(self, bare: str) -> None:
        self.bare = bare

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)?", str(value).strip())
        seconds = float(found[1]) * _SECONDS[found[2] or self.bare] if found else 0.0
        if seconds <= 0:
            self.fail(f"{value!r} is not a time above zero: write 30s, 2m, 1h or 1d", param)
        return seconds


class LeafCommand(click.Command):
    """A command that prints its help to the run's own output."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        return _help_option()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's own options first; those of every command apart."""
        records = {p.name: p.get_help_record(ctx) for p in self.get_params(ctx)}
        shared = [*(option.name for option in shared_options()), "help"]
        own = [record for name, record in records.items() if record and name not in shared]
        if own:
            with formatter.section("Options"):
                formatter.write_dl(own)
        with formatter.section(SHARED_TITLE):
            names = (record[0] for name in shared if (record := records[name]))
            formatter.write_text(", ".join(names))


def _help_option() -> click.Option:
    return click.Option(
        ["-h", "--help"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        help="Show help.",
        callback=_show_help,
    )


def _show_help(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.obj.streams.out.write(ctx.get_help() + "\n")
        ctx.exit()


def shared_options() -> list[click.Option]:
    """The options every command takes, in the order help shows them."""
    return [
        click.Option(
            ["-f", "--format"],
            type=click.Choice(["table", "json"]),
            help="How to print the result.",
        ),
        click.Option(["--json"], is_flag=True, help="Short for --format json."),
        click.Option(["--api-key"], metavar="KEY", help="The key to use."),
        click.Option(["--base-url"], metavar="URL", help="The server to talk to."),
        click.Option(
            ["--timeout"],
            type=Duration("ms"),
            metavar="TIME",
            help="The longest wait: 30s, 2m; a bare number is in ms.",
        ),
        click.Option(
            ["--local"], is_flag=True, help="Use the server embedded in this machine's tinkex."
        ),
        click.Option(["--verbose"], is_flag=True, help="Show the traceback of an error."),
    ]


def command(function: Callable[..., Output | None]) -> LeafCommand:
    """Makes a command of `function(context, **options)`, which returns what is to be printed."""
    params = list(reversed(getattr(function, "__click_params__", [])))

    def callback(**values: Any) -> Output | None:
        invocation: Invocation = click.get_current_context().obj
        context = _open_context(invocation, values)
        return function(context, **values)

    return LeafCommand(
        name=function.__name__.strip("_").replace("_", "-"),
        callback=callback,
        params=[*params, *shared_options()],
        help=function.__doc__,
        context_settings={"max_content_width": 100},
    )


def _open_context(invocation: Invocation, values: dict[str, Any]) -> CommandContext:
    """Takes the shared options out of `values`; those after the command win over those before."""
    own = {option.name: values.pop(str(option.name)) for option in shared_options()}
    merged = {**_converted(invocation.root_options), **{k: v for k, v in own.items() if v}}
    if merged.get("local") and merged.get("base_url"):
        raise click.UsageError("--local and --base-url exclude each other: give one of them.")
    connection = Connection(
        api_key=merged.get("api_key"),
        base_url="local" if merged.get("local") else merged.get("base_url"),
        timeout=merged.get("timeout"),
    )
    form = "json" if merged.get("json") else merged.get("format") or "table"
    context = CommandContext(
        form,
        connection,
        bool(merged.get("verbose")),
        invocation.streams,
        invocation.deps,
        Deadline(connection.timeout),
    )
    invocation.opened.append(context)
    return context


def _converted(root_options: dict[str, str | bool]) -> dict[str, Any]:
    """The options given before the command, read by the same rules as those after it."""
    by_name = {option.name: option for option in shared_options()}
    return {
        name: by_name[name].type.convert(value, by_name[name], None)
        for name, value in root_options.items()
    }
