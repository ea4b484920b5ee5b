"""`tinkex run stop`, `rename`, `note` and `delete`: what our server adds to the protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.commands.checkpoint.sharing import Cancelled
from tinkex.cli.commands.run.info import status_text
from tinkex.cli.errors import CliError
from tinkex.cli.line.context import CommandContext
from tinkex.cli.line.options import command
from tinkex.cli.listings.naming import find_run, short_id
from tinkex.cli.terminal.formats import format_size, format_timestamp
from tinkex.cli.terminal.output import LineOutput

if TYPE_CHECKING:
    from tinkex.types import Checkpoint, TrainingRun

_NOT_OFFERED = (404, 405, 501)


class RunChanged(LineOutput):
    """A run that was changed, and how."""

    def __init__(self, action: str, run_id: str, line: str, **facts: Any) -> None:
        self.facts = {"action": action, "training_run_id": run_id, **facts}
        self.line = line

    def to_dict(self) -> dict[str, Any]:
        return self.facts

    def lines(self) -> list[str]:
        return [self.line]


@command
@click.argument("run_id")
@click.argument("name")
def rename(context: CommandContext, run_id: str, name: str) -> RunChanged:
    """Give a run a NAME to know it by; an empty one takes the name away.

    Commands take the name in place of the id, as long as one run only has it.

    Example: tinkex run rename 1f3a90cc varn
    """
    run = _found(context, run_id)
    _change(context, "rename", lambda: context.rest.rename_training_run(_id(run), name or None))
    line = f"{_id(run)} is now called {name}" if name else f"{_id(run)} has no name any more"
    return RunChanged("rename", _id(run), line, name=name or None)


@command
@click.argument("run_id")
@click.argument("text", required=False)
def note(context: CommandContext, run_id: str, text: str | None) -> RunChanged:
    """Keep a remark with a run, or show the one it has.

    TEXT replaces the remark; an empty one takes it away.

    Example: tinkex run note varn "second try, half the rate"
    """
    run = _found(context, run_id)
    if text is None:
        return RunChanged("show-note", _id(run), run.note or "No note.", note=run.note)
    _change(context, "note", lambda: context.rest.note_training_run(_id(run), text or None))
    return RunChanged("note", _id(run), f"Noted with {_id(run)}", note=text or None)


@command
@click.argument("run_id")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def stop(context: CommandContext, run_id: str, yes: bool) -> LineOutput:
    """End a run that is live: what waits fails, nothing more is taken, checkpoints stay.

    Unsaved training is lost, so it asks first; --yes skips the question.

    Example: tinkex run stop varn
    """
    _refuse_to_guess(context, yes)
    run = _found(context, run_id)
    if run.state == "ended":
        return RunChanged("stop", _id(run), f"{_id(run)} has ended already", state="ended")
    if not yes:
        _show(context, run)
        context.note("What was trained since its last checkpoint will be lost.\n")
        if not context.confirm(f"Stop the run {short_id(_id(run))}?"):
            return Cancelled("Nothing was stopped.")
    _change(context, "stop", lambda: context.rest.stop_training_run(_id(run)))
    state = context.wait(context.rest.get_training_run(_id(run))).state
    return RunChanged("stop", _id(run), f"Stopped {_id(run)}", state=state)


@command
@click.argument("run_id")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete(context: CommandContext, run_id: str, yes: bool) -> LineOutput:
    """Delete an ended run with all its checkpoints, permanently.

    What will be deleted is shown and confirmed first; --yes skips the question.

    Example: tinkex run delete varn
    """
    _refuse_to_guess(context, yes)
    run = _found(context, run_id)
    if run.state not in ("ended", None):
        raise CliError(
            f"The run {short_id(_id(run))} is {run.state}: only an ended run can be deleted",
            None,
            f"Next: tinkex run stop {short_id(_id(run))}, then this again",
        )
    saved = context.wait(context.rest.list_checkpoints(_id(run))).checkpoints
    if not yes and not _confirmed(context, run, saved):
        return Cancelled("Deletion cancelled.")
    _change(context, "delete", lambda: context.rest.delete_training_run(_id(run)))
    line = f"Deleted {_id(run)} and {_checkpoints(saved)}"
    return RunChanged("delete", _id(run), line, deleted_checkpoints=len(saved))


def _id(run: TrainingRun) -> str:
    return run.training_run_id


def _found(context: CommandContext, text: str) -> TrainingRun:
    run: TrainingRun = context.wait(context.rest.get_training_run(find_run(context, text)))
    return run


def _change(context: CommandContext, what: str, ask: Callable[[], Any]) -> None:
    """Asks for a change of a run that is known to exist: who answers 404 has no such request."""
    try:
        context.wait(ask())
    except Exception as error:
        if getattr(error, "status_code", None) not in _NOT_OFFERED:
            raise
        raise CliError(
            f"This server has no 'run {what}'",
            "It is an addition of tinkex serve; the hosted service does not know it.",
        ) from error


def _refuse_to_guess(context: CommandContext, yes: bool) -> None:
    if not yes and not context.can_ask:
        raise click.UsageError("Nobody can be asked here: add --yes to go on without asking.")


def _show(context: CommandContext, run: TrainingRun) -> None:
    name = f" ({run.name})" if run.name else ""
    used = format_timestamp(run.last_request_time, context.now)
    step = "" if run.step is None else f"step {run.step}, "
    context.note(f"{_id(run)}{name}")
    context.note(f"  {run.base_model}, {step}{status_text(run).lower()}, last used {used}")


def _confirmed(context: CommandContext, run: TrainingRun, saved: list[Checkpoint]) -> bool:
    context.note("Will delete the run:")
    _show(context, run)
    size = sum(item.size_bytes or 0 for item in saved)
    published = sum(item.public for item in saved)
    others = f", {published} of them public" if published else ""
    context.note(f"and with it {_checkpoints(saved)} ({format_size(size)}{others})")
    context.note("\nWARNING: This action is permanent and cannot be undone.\n")
    return context.confirm("Are you sure you want to delete it?")


def _checkpoints(saved: list[Checkpoint]) -> str:
    return f"{len(saved)} checkpoint{'' if len(saved) == 1 else 's'}"
