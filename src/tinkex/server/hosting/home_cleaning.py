"""Deletes what a home need not keep: through its server if one is running, otherwise directly."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tinkex.server.hosting.home_server import ask
from tinkex.server.hosting.own_home import own_home
from tinkex.server.sampling.unnamed_weights import Freed
from tinkex.server.settings import Settings
from tinkex.server.storage.home import Home, HomeTaken
from tinkex.wire.routes import COLLECT_HOME


def clean(root: Path, *, dry_run: bool = False) -> Freed:
    """What was or would be freed. Raises `HomeTaken` if its server cannot be asked."""
    try:
        home = own_home(root, os.environ)
    except HomeTaken as taken:
        found = ask(taken, "GET" if dry_run else "POST", COLLECT_HOME)
        return Freed(found["samplers"], found["size_bytes"])
    return asyncio.run(_clean(home, dry_run))


async def _clean(home: Home, dry_run: bool) -> Freed:
    """Use the server's own parts, without an engine."""
    from tinkex.server.core import Core

    core = Core(Settings(home.root, models=(), port=0), home=home)
    try:
        await core.start()
        return await (core.unnamed.collectable() if dry_run else core.collect())
    finally:
        await core.stop()
