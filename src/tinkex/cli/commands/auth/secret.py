"""Asks for a secret without showing it."""

from __future__ import annotations

import sys

from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext

_BACKSPACES = ("\x7f", "\b")
_INTERRUPT = "\x03"
_END = "\x04"


def ask_secret(context: CommandContext, question: str) -> str:
    """What the person typed, shown as stars on a terminal; a line of stdin otherwise."""
    if context.stdin is sys.stdin and context.stdin.isatty():
        return _masked(context, question).strip()
    _prompt(context, question)
    answer = context.stdin.readline()
    if not answer:
        context.note("")
        raise CliError("Aborted.")
    return answer.strip()


def _prompt(context: CommandContext, question: str) -> None:
    context.streams.err.write(f"{question}: ")
    context.streams.err.flush()


def _masked(context: CommandContext, question: str) -> str:
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        # Before the prompt: changing the mode throws away what was typed until then.
        tty.setcbreak(descriptor)
        _prompt(context, question)
        return _read_keys(context)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        context.note("")


def _read_keys(context: CommandContext) -> str:
    typed: list[str] = []
    while True:
        key = sys.stdin.read(1)
        if key in ("\r", "\n"):
            return "".join(typed)
        if key == _INTERRUPT:
            raise KeyboardInterrupt
        if key in ("", _END):
            raise CliError("Aborted.")
        if key in _BACKSPACES:
            if typed:
                typed.pop()
                context.streams.err.write("\b \b")
        elif key.isprintable():
            typed.append(key)
            context.streams.err.write("*")
        context.streams.err.flush()
