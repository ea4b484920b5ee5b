"""Runs and checkpoints as people name them: a whole id, the start of one, or a run's name.

A whole id is taken as it is and asks nothing of the server. Anything shorter must mean exactly one
run; if it does not, the error lists those it could mean.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.listings.checkpoint_path import SCHEME, check_path

if TYPE_CHECKING:
    from tinkex.types import TrainingRun

_WHOLE = re.compile(
    r"([0-9a-f]{8})-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}:train:(\d+)"
)
_SHORT = re.compile(r"([0-9a-f-]+):(\d+)")
_PAGE = 100
_NOT_OFFERED = (404, 405, 501)
_MOST_CANDIDATES = 8


def short_id(run_id: str) -> str:
    """`1f3a90cc:0` for a long id: what is left when there is no room. Other ids stay whole."""
    found = _WHOLE.fullmatch(run_id)
    return f"{found[1]}:{found[2]}" if found else run_id


def find_run(context: CommandContext, text: str) -> str:
    """The id of the run that `text` means."""
    if _WHOLE.fullmatch(text):
        return text
    try:
        runs = _all_runs(context)
    except Exception as error:
        if getattr(error, "status_code", None) in _NOT_OFFERED:
            return text
        raise
    exact = [run for run in runs if run.training_run_id == text]
    named = [run for run in runs if run.name == text]
    starting = [run for run in runs if _means(text, run.training_run_id)]
    return _only(text, exact or named or starting, runs)


def find_checkpoint(context: CommandContext, text: str) -> str:
    """The path of the checkpoint that `text` means: its run may be shortened or named, as in
    `tinker://1f3a/weights/0001`."""
    parts = check_path(text)
    try:
        run_id = find_run(context, parts.training_run_id)
    except _NoSuchRun:
        run_id = parts.training_run_id  # perhaps of somebody who published it: the server knows
    return f"{SCHEME}{run_id}/{parts.kind}/{parts.name}"


class _NoSuchRun(CliError):
    """No run of ours is meant."""


def _means(text: str, run_id: str) -> bool:
    short = _SHORT.fullmatch(text)
    if short and run_id.startswith(short[1]) and run_id.endswith(f":{short[2]}"):
        return True
    return run_id.startswith(text)


def _only(text: str, found: Sequence[TrainingRun], runs: Sequence[TrainingRun]) -> str:
    if len(found) == 1:
        return found[0].training_run_id
    if not found:
        raise _NoSuchRun(
            f"No training run is called {text!r} or has an id that starts so",
            f"You have {len(runs)} run{'s' if len(runs) > 1 else ''} on this server."
            if runs
            else "You have none on this server.",
            "Next: tinkex run list",
        )
    lines = [f"  {run.training_run_id}  {run.name or run.base_model}" for run in found]
    more = len(lines) - _MOST_CANDIDATES
    if more > 0:
        lines = [*lines[:_MOST_CANDIDATES], f"  and {more} more"]
    raise CliError(
        f"{text!r} means {len(found)} training runs",
        "\n".join(["It could be:", *lines]),
        "Type more of the id.",
        exit_code=2,
    )


def _all_runs(context: CommandContext) -> list[TrainingRun]:
    runs: list[TrainingRun] = []
    while True:
        page = context.wait(context.rest.list_training_runs(limit=_PAGE, offset=len(runs)))
        runs += page.training_runs
        if not page.training_runs or len(runs) >= page.cursor.total_count:
            return runs
