"""`tinker://` paths and the names inside them.

The grammar itself belongs to the types; here are the rules a name must keep before it may become
part of a path, a URL or a file.
"""

import unicodedata

from tinkex.types.tinker_path import CHECKPOINT_KINDS, CheckpointType, PathParts, split_tinker_path
from tinkex.wire.errors import WireError
from tinkex.wire.limits import MAX_NAME_LENGTH

KIND_OF_TYPE: dict[CheckpointType, str] = {
    kind: segment for segment, kind in CHECKPOINT_KINDS.items()
}
"""Checkpoint type -> path segment."""


def parse_path(path: str) -> PathParts:
    """The parts of a checkpoint path, each safe to use; WireError otherwise."""
    try:
        parts = split_tinker_path(path)
    except ValueError as error:
        raise WireError("path", str(error)) from error
    check_name(parts.training_run_id, "training_run_id")
    check_name(parts.name, "name")
    return parts


def build_path(training_run_id: str, checkpoint_type: CheckpointType, name: str) -> str:
    check_name(training_run_id, "training_run_id")
    check_name(name, "name")
    return f"tinker://{training_run_id}/{KIND_OF_TYPE[checkpoint_type]}/{name}"


def split_checkpoint_id(checkpoint_id: str) -> tuple[str, str]:
    """(`kind`, `name`) of `<kind>/<name>`; WireError otherwise."""
    kind, slash, name = checkpoint_id.partition("/")
    if not slash or kind not in CHECKPOINT_KINDS:
        kinds = ", ".join(CHECKPOINT_KINDS)
        raise WireError("checkpoint_id", f"must be <kind>/<name> with a kind of {kinds}")
    check_name(name, "checkpoint_id")
    return kind, name


def check_name(name: str, field: str = "name") -> str:
    """`name`, if it can safely be one segment of a path, a URL and a file; WireError otherwise."""
    if not name:
        raise WireError(field, "must not be empty")
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_LENGTH:
        raise WireError(field, f"is longer than {MAX_NAME_LENGTH} bytes")
    if name in (".", "..") or name != name.strip():
        raise WireError(field, "must not be '.' or '..', nor begin or end with a space")
    if any(char in "/\\" or unicodedata.category(char)[0] == "C" for char in name):
        raise WireError(field, "must not hold slashes or control characters")
    return name
