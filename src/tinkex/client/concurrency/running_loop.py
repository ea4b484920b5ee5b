"""Noticing that blocking code was called from inside an event loop, and saying so."""

import asyncio
import logging
import sys
import threading
import traceback

SDK_THREAD = "tinkex-loop"

logger = logging.getLogger("tinkex")

_told: set[tuple[str, int]] = set()
"""Lines of programs that were warned of: a loop would repeat it with every step."""


def refuse_on_sdk_loop(method: str) -> None:
    """RuntimeError where blocking would wait for itself: in a callback of the SDK."""
    if threading.current_thread().name == SDK_THREAD:
        raise RuntimeError(
            f"{method}() would block the SDK's own event loop: it was called from an event "
            "handler or an observer. Start a thread, or do it outside the callback."
        )


def warn_if_blocking(method: str, async_method: str | None = None) -> None:
    """Log a warning when a line of a program first blocks a running event loop.

    The call then goes on: it works, but everything else on that loop waits. Notebooks always run a
    loop, so they are left alone.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    line = _line_of_program()
    if "ipykernel" in sys.modules or line in _told:
        return
    _told.add(line)
    instead = "await what it was called on" if async_method is None else f"use {async_method}()"
    logger.warning(
        "%s() was called from a running event loop and blocks it: %s instead.", method, instead
    )
    stack = "".join(traceback.format_stack(limit=6)[:-2])
    logger.warning("%s() was called here:\n%s", method, stack)


def _line_of_program() -> tuple[str, int]:
    """File and line of the innermost call that is not made by the SDK itself."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("tinkex."):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
