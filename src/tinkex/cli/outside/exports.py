"""The way from `checkpoint export` to the engine's writers of layouts, which need torch."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from tinkex.cli.errors import CliError
from tinkex.cli.outside.server_floor import folder_of_home, require_server


def base_folder(given: str, *, of_our_server: bool) -> Path:
    """The folder of a base model: as it is given, where our home's server had the model of this
    name from, or where `tinkex serve` would find the name. Nothing is downloaded."""
    name, folder = given.partition(":")[0], Path(given).expanduser()
    served = folder_of_home(name) if of_our_server else None
    if served is not None:
        return served
    if (folder / "config.json").is_file():
        return folder
    from tinkex.server.engines.model_sources import ModelNotFound, default_cache, resolve

    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    try:
        return resolve(name, default_cache(offline), offline).folder
    except ModelNotFound as error:
        raise CliError(
            f"The base model is not on this machine: {given}",
            f"Details: {error}",
            "Name its folder: --base FOLDER (for an adapter its config.json is enough). "
            "Folders that a server of this machine has served are known by its home: TINKEX_HOME",
        ) from error


def export_archive(
    archive: Path, base: str, layout: str, folder: Path, name: str | None, *, of_our_server: bool
) -> int | None:
    """Writes the archive's adapter into an empty folder; returns the largest rank it has there.
    `of_our_server`: `base` is a name that the server of this machine's home has for it."""
    require_server()
    found = base_folder(base, of_our_server=of_our_server)
    exports = importlib.import_module("tinkex.engine.exports.export")
    try:
        rank: int | None = exports.export(archive, found, name, layout, folder)
    except exports.UserError as error:
        raise CliError("The checkpoint cannot be exported", f"Details: {error}") from error
    return rank
