"""`tinker://` paths as people type them: checked before anything is asked of a server."""

from __future__ import annotations

from tinkex.cli.errors import CliError
from tinkex.types.tinker_path import SCHEME, PathParts, split_tinker_path

__all__ = ["SCHEME", "check_path", "folder_name"]

_FORMAT = "Expected: tinker://RUN_ID/weights/NAME, or sampler_weights, or external_weights"


def check_path(path: str) -> PathParts:
    """The parts of a checkpoint path; a path of another form is explained."""
    try:
        return split_tinker_path(path)
    except ValueError:
        raise CliError(
            f"Invalid checkpoint path: {path}", _FORMAT, "Next: tinkex checkpoint list", exit_code=2
        ) from None


def folder_name(path: str) -> str:
    """What a checkpoint's folder is called: its path in characters every system takes."""
    return path.removeprefix(SCHEME).replace("/", "_").replace(":", "_")
