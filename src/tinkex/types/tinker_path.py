"""The grammar of checkpoint paths: `tinker://<training run>/<kind>/<name>`.

Pure text. Whether a name is safe to use as a file is a question for the wire floor.
"""

from typing import Final, Literal, NamedTuple, TypeAlias, cast

CheckpointType: TypeAlias = Literal["training", "sampler", "external"]

CheckpointKind: TypeAlias = Literal["weights", "sampler_weights", "external_weights"]
"""What a path calls the type."""

SCHEME = "tinker://"
TRAINING_WEIGHTS: Final = "weights"
SAMPLER_WEIGHTS: Final = "sampler_weights"
EXTERNAL_WEIGHTS: Final = "external_weights"

CHECKPOINT_KINDS: dict[str, CheckpointType] = {
    TRAINING_WEIGHTS: "training",
    SAMPLER_WEIGHTS: "sampler",
    EXTERNAL_WEIGHTS: "external",
}
"""Path segment -> checkpoint type."""


class PathParts(NamedTuple):
    training_run_id: str
    kind: CheckpointKind
    name: str


def split_tinker_path(path: str) -> PathParts:
    """The three parts of a path; ValueError quotes the path and shows the form."""
    parts = path[len(SCHEME) :].split("/") if path.startswith(SCHEME) else []
    if len(parts) != 3 or parts[1] not in CHECKPOINT_KINDS or not parts[0] or not parts[2]:
        kinds = "|".join(CHECKPOINT_KINDS)
        raise ValueError(
            f"Invalid tinker path: {path!r}; the form is {SCHEME}<training_run_id>/<{kinds}>/<name>"
        )
    return PathParts(parts[0], cast(CheckpointKind, parts[1]), parts[2])


def checkpoint_path(training_run_id: str, kind: str, name: str) -> str:
    return f"{SCHEME}{training_run_id}/{kind}/{name}"
