"""The entry point: `run` executes a command line, `main` turns the outcome into an exit code.

`main` is the only place that ends the process. Nothing heavy is imported until a command that
needs it has been found, so help, version and mistakes answer at once.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, TextIO

    from tinkex.cli.line.result import CommandResult
    from tinkex.cli.outside.dependencies import Dependencies


def main() -> NoReturn:
    """Runs the process's command line and exits with its code."""
    _ready_streams()
    try:
        code = run().exit_code
    except KeyboardInterrupt:
        code = 130
    _leave(code)


def _ready_streams() -> None:
    """What a stream's encoding has no sign for becomes a question mark, and a stream that was
    closed (`>&-`) takes everything: neither is a reason to fail."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - to the end
        elif mode == "w" and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")


def run(
    argv: list[str] | None = None,
    *,
    deps: Dependencies | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> CommandResult:
    """Runs one command line and returns its outcome; never exits.

    `deps` replaces what commands reach outside themselves for (clients, clock, terminal input).
    """
    from tinkex.cli.line.dispatch import Streams, dispatch
    from tinkex.cli.line.result import FAILED, INTERRUPTED, OK, CommandResult

    streams = Streams(stdout or sys.stdout, stderr or sys.stderr)
    try:
        result = dispatch(sys.argv[1:] if argv is None else argv, deps, streams)
        streams.out.flush()
        return result
    except KeyboardInterrupt as error:
        streams.say("Interrupted.")
        return CommandResult(INTERRUPTED, error=error)
    except BrokenPipeError as error:
        # The reader has what it wanted (`| head -1`): that is no failure of ours.
        return CommandResult(OK, error=error)
    except OSError as error:
        streams.say(f"Error: Could not write the output: {error}")
        return CommandResult(FAILED, error=error)


def _leave(code: int) -> NoReturn:
    """Exits without a traceback, whatever the reader of our output or the user's Ctrl-C does."""
    quick = "signal" not in sys.modules  # to load it takes longer than help and mistakes do
    if not quick:
        import signal

        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            # The interpreter flushes once more at exit; give it somewhere to write.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if quick or "tinkex.client.concurrency.loop" in sys.modules:
        # Threads of the HTTP library may still be returning to Python. Taking the interpreter down
        # under them can abort the process after all is done, so leave without taking it down. What
        # was quick has nothing to take down, and a Ctrl-C nothing to interrupt.
        import atexit

        atexit._run_exitfuncs()
        os._exit(code)
    sys.exit(code)
