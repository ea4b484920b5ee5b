"""The log level a user can ask for in the environment, applied once, on first use of the SDK."""

import functools
import logging

from tinkex.client.settings.config import log_level_from_environment


@functools.cache
def apply_log_level() -> None:
    """Show SDK logs at the level of TINKEX_LOG or TINKER_LOG; without either, change nothing."""
    level = log_level_from_environment()
    if level is not None:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("tinkex").setLevel(level.upper())
