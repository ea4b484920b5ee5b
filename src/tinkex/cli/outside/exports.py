"""The way from `checkpoint export` to the engine's writers of layouts, which need torch."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from tinkex.cli.errors import CliError
from tinkex.cli.outside.server_floor import require_server


def base_folder(given: str) -> Path:
    """The folder of a base model: as it is given, or where `tinkex serve` would find the name.
    Nothing is downloaded."""
    folder = Path(given).expanduser()
    if (folder / "config.json").is_file():
        return folder
    from tinkex.server.engines.model_sources import ModelNotFound, default_cache, resolve

    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    try:
        return resolve(given.partition(":")[0], default_cache(offline), offline).folder
    except ModelNotFound as error:
        raise CliError(
            f"The base model is not on this machine: {given}",
            f"Details: {error}",
            "Name its folder: --base FOLDER (for an adapter its config.json is enough)",
        ) from error


def export_archive(
    archive: Path, base: str, layout: str, folder: Path, name: str | None
) -> int | None:
    """Writes the archive's adapter into an empty folder; returns the largest rank it has there."""
    require_server()
    found = base_folder(base)
    exports = importlib.import_module("tinkex.engine.exports.export")
    try:
        rank: int | None = exports.export(archive, found, name, layout, folder)
    except exports.UserError as error:
        raise CliError("The checkpoint cannot be exported", f"Details: {error}") from error
    return rank
