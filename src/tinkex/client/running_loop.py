"""Noticing that blocking code was called from inside an event loop, and saying so."""

import asyncio
import logging
import sys
import traceback

logger = logging.getLogger("tinkex")


def warn_if_blocking(method: str, async_method: str) -> None:
    """Log a warning when a blocking call is made on a running event loop.

    The call then goes on: it works, but everything else on that loop waits. Notebooks always run a
    loop, so they are left alone.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if "ipykernel" in sys.modules:
        return
    logger.warning(
        "%s() was called from a running event loop and blocks it; use `await …%s()` instead.",
        method,
        async_method,
    )
    stack = "".join(traceback.format_stack(limit=6)[:-2])
    logger.warning("%s() was called here:\n%s", method, stack)
