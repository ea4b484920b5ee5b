"""Which checkpoints `delete` is about: named paths, or a run and filters."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, get_args

from tinkex.cli.errors import CliError
from tinkex.types.tinker_path import CHECKPOINT_KINDS, CheckpointType

if TYPE_CHECKING:
    from tinkex.types import Checkpoint

_TYPES: dict[str, str] = {**CHECKPOINT_KINDS, **{each: each for each in get_args(CheckpointType)}}
"""What people call a type: as it is called, or as a path calls it."""


@dataclass(frozen=True)
class Selection:
    """Filters on a run's checkpoints; None filters nothing. The dates are strict bounds."""

    kind: str | None = None
    before: datetime | None = None
    after: datetime | None = None

    @classmethod
    def read(
        cls,
        paths: tuple[str, ...],
        run_id: str | None,
        kind: str | None,
        before: str | None,
        after: str | None,
    ) -> Selection:
        """Checks what was typed; says which options exclude or need each other."""
        if not paths and run_id is None:
            raise CliError(
                "Must specify checkpoint paths or --run-id",
                "Examples: tinkex checkpoint delete tinker://RUN_ID/weights/0001\n"
                "          tinkex checkpoint delete --run-id RUN_ID --before 2026-01-31",
                exit_code=2,
            )
        if paths and run_id is not None:
            raise CliError("Cannot specify both checkpoint paths and --run-id", exit_code=2)
        if run_id is None and (kind or before or after):
            raise CliError("--type, --before, and --after require --run-id", exit_code=2)
        return cls(_type(kind), _moment(before), _moment(after))

    def matches(self, item: Checkpoint) -> bool:
        """Whether a checkpoint passes every filter."""
        if self.kind is not None and item.checkpoint_type != self.kind:
            return False
        made = item.time if item.time.tzinfo else item.time.replace(tzinfo=UTC)
        if self.before is not None and not made < self.before:
            return False
        return self.after is None or made > self.after


def _type(text: str | None) -> str | None:
    if text is None:
        return None
    if text not in _TYPES:
        names = "weights, sampler_weights, external_weights"
        raise CliError(f"Invalid checkpoint type: {text}", f"Types: {names}", exit_code=2)
    return _TYPES[text]


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CliError(
            f"Invalid date: {text}",
            "Write ISO 8601: 2026-01-31, or 2026-01-31T12:00:00Z",
            exit_code=2,
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
