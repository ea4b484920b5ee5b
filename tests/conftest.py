"""What every test may rely on, whoever started the test run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from support.grouping import group_of
from support.logging_state import restored_logging
from tinkex.engine.process.parent import ENVIRONMENT

pytest_plugins = ["support.postgres"]

# As in an engine's own process; read when torch loads. What the C library reads when a process
# starts would reach only the servers that tests start, and those have it not.
for _name, _value in ENVIRONMENT.items():
    if _name != "GLIBC_TUNABLES":
        os.environ.setdefault(_name, _value)

# A shell that starts a job in the background lets it ignore Ctrl-C, and children inherit that.
# Tests that interrupt a command need the ordinary behaviour.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A program's own entry point sets up logging for the whole process; a test's must not last."""
    with restored_logging():
        yield


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several workers, what shares a server runs on one of them."""
    from xdist.scheduler import LoadFileScheduling

    class ByGroup(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid.partition("::")[0])

    return ByGroup(config, log) if config.getoption("dist") == "loadfile" else None
