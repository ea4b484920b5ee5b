"""Runs one command: parses its options, calls it, prints its result or explains its failure."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import TextIO

import click

from tinkex.cli.errors import CliError, explain
from tinkex.cli.line.arguments import Tokens, wants_json
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.dispatch import Streams
from tinkex.cli.line.options import Invocation, LeafCommand
from tinkex.cli.line.result import FAILED, OK, WRONG_USAGE, CommandResult
from tinkex.cli.line.table import Command
from tinkex.cli.outside.dependencies import Dependencies
from tinkex.cli.terminal.output import Output, write_json
from tinkex.cli.terminal.wrapping import wrapped


def load(command: Command) -> LeafCommand:
    """Imports a command from where the table says it lives."""
    module, _, attribute = command.target.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not isinstance(found, LeafCommand):
        raise TypeError(f"{command.target} is no command")
    return found


def invoke(
    command: Command,
    words: tuple[str, ...],
    tokens: Tokens,
    deps: Dependencies | None,
    streams: Streams,
) -> CommandResult:
    """Runs `command` with the rest of the command line."""
    invocation = Invocation(words, tokens.options, deps or Dependencies(), streams, [])
    status = "errored"
    try:
        result = _call(load(command), tokens.rest, invocation)
        status = "success" if result.exit_code == OK else "errored"
        return result
    except click.UsageError as error:
        return _wrong_usage(error, words, streams, wants_json(tokens))
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    except BrokenPipeError:
        raise
    except Exception as error:
        if isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError):
            status = "interrupted"  # what did not answer in time is not waited for again
        return _failure(error, invocation)
    finally:
        for context in invocation.opened:
            context.close(status)


def _call(command: LeafCommand, args: list[str], invocation: Invocation) -> CommandResult:
    name = " ".join(("tinkex", *invocation.words))
    try:
        with command.make_context(name, args, obj=invocation) as ctx:
            value = command.invoke(ctx)
    except click.exceptions.Exit as leave:  # help was printed
        return CommandResult(leave.exit_code)
    if not isinstance(value, Output):
        return CommandResult(OK)
    value.write(invocation.streams.out, invocation.opened[0].format)
    invocation.streams.out.flush()  # before clients are closed, which may take a moment
    return CommandResult(value.exit_code, value)


def _wrong_usage(
    error: click.UsageError, words: tuple[str, ...], streams: Streams, as_json: bool
) -> CommandResult:
    message, see = _plainly(error.format_message()), f"See: tinkex {' '.join(words)} --help"
    if as_json:
        write_json(CliError(message, None, see, WRONG_USAGE).to_dict(), streams.err)
        return CommandResult(WRONG_USAGE, error=error)
    if error.ctx is not None:
        streams.say(error.ctx.get_usage() + "\n")
    streams.say(wrapped(f"Error: {message}", streams.err))
    streams.say(see)
    return CommandResult(WRONG_USAGE, error=error)


def _plainly(message: str) -> str:
    """Without the parser library's words for its own types."""
    message = message.replace("is not a valid integer range", "is not a whole number")
    return message.replace("is not a valid float range", "is not a number")


def _failure(error: Exception, invocation: Invocation) -> CommandResult:
    context = invocation.opened[0] if invocation.opened else None
    if _wants_traceback(context):
        traceback.print_exception(error, file=invocation.streams.err)
    address = context.deps.clients.address(context.connection) if context else None
    explained = explain(error, address)
    if context is not None:
        explained = explained.keeping(context.connection.flags())
    if context is not None and context.is_json:
        write_json(explained.to_dict(), invocation.streams.err)
    else:
        write_error(explained, invocation.streams.err)
    return CommandResult(explained.exit_code or FAILED, error=error)


def write_error(error: CliError, stream: TextIO) -> None:
    """Headline, details and next step, one line each; on a terminal the first two are broken
    between words. The last never is: it is a command, which is copied in one piece."""
    lines = [*(wrapped(line, stream) for line in error.said), error.next_step]
    stream.writelines(f"{line}\n" for line in lines if line)


def _wants_traceback(context: CommandContext | None) -> bool:
    if os.environ.get("TINKEX_DEBUG", "") not in ("", "0"):
        return True
    return context.verbose if context else "--verbose" in sys.argv
