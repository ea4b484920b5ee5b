"""`tinker://` paths and the names inside them.

The grammar itself belongs to the types; here are the rules a name must keep before it may become
part of a path, a URL or a file.
"""

import unicodedata

from tinkex.types.tinker_path import PathParts, split_tinker_path
from tinkex.wire.errors import WireError
from tinkex.wire.limits import MAX_NAME_LENGTH


def parse_path(path: str) -> PathParts:
    """The parts of a checkpoint path, each safe to use; WireError otherwise."""
    try:
        parts = split_tinker_path(path)
    except ValueError as error:
        raise WireError("path", str(error)) from error
    check_name(parts.training_run_id, "training_run_id")
    check_name(parts.name, "name")
    return parts


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
