"""How many files this process may have open; every connection is one.

The usual soft limit of 1,024 is a relic that programs which do not use `select` may raise by
themselves, up to the hard one.
"""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger(__name__)

CONNECTIONS = 5000
OWN_FILES = 500
_ENOUGH = 65_536


def allow() -> int:
    """Raise the limit as far as it helps; says so when it stays too low. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft != resource.RLIM_INFINITY and soft < CONNECTIONS + OWN_FILES:
        logger.warning(
            "this machine allows %d open files, too few for %d connections: raise the hard limit "
            "(ulimit -Hn, or LimitNOFILE of the service)",
            soft,
            CONNECTIONS,
        )
    return soft
