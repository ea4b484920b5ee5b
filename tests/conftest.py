"""What every test may rely on, whoever started the test run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from support.grouping import group_of
from support.logging_state import restored_logging
from tinkex.engine.process.parent import ENVIRONMENT

pytest_plugins = ["support.postgres"]

# As in an engine's own process; read when torch loads.
for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)

# A shell that starts a job in the background lets it ignore Ctrl-C, and children inherit that.
# Tests that interrupt a command need the ordinary behaviour.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A program's own entry point sets up logging for the whole process; a test's must not last."""
    with restored_logging():
        yield


@pytest.hookimpl(tryfirst=True)  # before the workers look for groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several workers, what shares a server runs on one of them. A worker itself is told of
    the groups, and no more how they are dealt out."""
    if getattr(config.option, "loadgroup", False) or config.getoption("dist", "no") == "loadgroup":
        for item in items:
            item.add_marker(pytest.mark.xdist_group(group_of(item.path)))
