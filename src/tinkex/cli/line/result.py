"""The result of a command line. Knows no command and imports nothing."""

from __future__ import annotations

OK = 0
FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130


class CommandResult:
    """The outcome of one command line.

    `exit_code` is 0, 1, 2 or 130; `value` is what the command printed as its result (an `Output`,
    or None); `error` is the exception that ended it, or None.
    """

    __slots__ = ("error", "exit_code", "value")

    def __init__(
        self, exit_code: int, value: object | None = None, error: BaseException | None = None
    ) -> None:
        self.exit_code = exit_code
        self.value = value
        self.error = error

    def __repr__(self) -> str:
        return f"CommandResult(exit_code={self.exit_code}, value={self.value!r})"
