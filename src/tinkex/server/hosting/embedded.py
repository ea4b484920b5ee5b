"""The same server without a port, for `base_url="local"`: the client finds `open_app` by name.

It lives in the usual home (`$TINKEX_HOME`, else `~/.tinkex`; its rows in `$TINKEX_DATABASE` where
that is set) and serves `$TINKEX_MODELS`, a list with commas of models and aliases (`NAME=MODEL`),
or the default model and the built-in ones, each with `$TINKEX_ENGINES` engines (one unless told
otherwise).
An engine starts when something is asked of it, so looking around needs none. A home has one server:
who comes second finds in `HomeTaken` where the first one answers, and joins it there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tinkex.server.engines.fleet import choose_fleet, fewest_of, visible_gpus, wanted_in
from tinkex.server.engines.model_sources import (
    BUILT_IN,
    DEFAULT_MODEL,
    build_catalog,
    default_cache,
)
from tinkex.server.hosting.own_home import own_home
from tinkex.server.settings import ModelSpec, Settings
from tinkex.server.storage.home import HomeTaken, default_home

if TYPE_CHECKING:
    from starlette.applications import Starlette

MODELS_VARIABLE = "TINKEX_MODELS"


def open_app(environ: Mapping[str, str] | None = None) -> Starlette:
    """An application that is not started yet. Raises `HomeTaken` or `ModelNotFound`, in one line.

    May unpack a model, so call it off the event loop.
    """
    environ = os.environ if environ is None else environ
    home = own_home(default_home(environ), environ)
    try:
        # Half a second to import: not for who comes second, and joins.
        from tinkex.server.app import create_app

        return create_app(settings_in(home.root, environ), home=home)
    except BaseException:
        home.release()
        raise


def socket_of(taken: HomeTaken) -> str:
    """The socket of the process that holds the home; empty if it has none, or is this process."""
    if taken.holder is None:
        return str(taken.root / "socket")
    return "" if taken.holder.pid == os.getpid() else taken.holder.socket


def settings_in(root: Path, environ: Mapping[str, str]) -> Settings:
    """What the server of this home serves, and how."""
    entries = [entry for entry in environ.get(MODELS_VARIABLE, "").split(",") if entry]
    aliases = [entry for entry in entries if "=" in entry]
    names = [entry for entry in entries if "=" not in entry]
    served = names if entries else [DEFAULT_MODEL, *BUILT_IN]
    catalog = build_catalog(served, aliases, default_cache(environ), environ)
    models = tuple(
        ModelSpec(source.name, str(source.folder), str(source.tokenizer_dir))
        for source in catalog.models
    )
    wanted = wanted_in(environ)
    gpus = visible_gpus() if wanted != 1 else 0
    engines, devices = choose_fleet(wanted, len(models), "auto", gpus)
    return Settings(
        home=root,
        models=models,
        aliases=catalog.aliases,
        port=0,
        engines=engines,
        fewest_engines=fewest_of(wanted),
        devices=devices,
        engines_on_demand=True,
    )
