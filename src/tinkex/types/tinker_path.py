"""The grammar of checkpoint paths: `tinker://<training run>/<kind>/<name>`.

Pure text. Whether a name is safe to use as a file is a question for the wire floor.
"""

from typing import Literal, NamedTuple, TypeAlias

CheckpointType: TypeAlias = Literal["training", "sampler", "external"]

SCHEME = "tinker://"

CHECKPOINT_KINDS: dict[str, CheckpointType] = {
    "weights": "training",
    "sampler_weights": "sampler",
    "external_weights": "external",
}
"""Path segment -> checkpoint type."""


class PathParts(NamedTuple):
    training_run_id: str
    kind: str
    name: str


def split_tinker_path(path: str) -> PathParts:
    """The three parts of a path; ValueError quotes the path and shows the form."""
    parts = path[len(SCHEME) :].split("/") if path.startswith(SCHEME) else []
    if len(parts) != 3 or parts[1] not in CHECKPOINT_KINDS or not parts[0] or not parts[2]:
        kinds = "|".join(CHECKPOINT_KINDS)
        raise ValueError(
            f"Invalid tinker path: {path!r}; the form is {SCHEME}<training_run_id>/<{kinds}>/<name>"
        )
    return PathParts(*parts)
