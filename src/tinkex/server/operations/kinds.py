"""What each kind of operation means: its body becomes engine commands, their result an outcome.

A body is checked here, when its turn has come: a `Refusal` raised here is the operation's failed
future. Adding a kind is adding a module and a line.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinkex.server.operations import create, optim_step
from tinkex.server.operations.base import Prepared
from tinkex.server.operations.forward import Forward
from tinkex.server.operations.load import Loading
from tinkex.server.operations.log import MUTATING, Entry
from tinkex.server.operations.runs import Run
from tinkex.server.operations.save import FOLDER_KINDS, Saving


@dataclass(frozen=True, slots=True)
class Kinds:
    """All kinds, each with what it needs around it."""

    forward: Forward
    saving: Saving
    loading: Loading

    async def prepare(self, run: Run, entry: Entry, body: bytes) -> Prepared:
        """Make an operation ready for the engine. Raises `Refusal`."""
        if entry.kind in MUTATING and entry.kind != "forward_backward":
            run.gaps.change_weights()
        if entry.kind in ("forward", "forward_backward"):
            return await self.forward.prepare(run, entry, body)
        if entry.kind == "optim_step":
            return optim_step.prepare(run, entry, body)
        if entry.kind in FOLDER_KINDS:
            return self.saving.prepare(run, entry, body)
        if entry.kind == "load_weights":
            return await self.loading.prepare(run, entry, body)
        if entry.kind == "create_from":
            return await self.loading.prepare_creation(run, entry, body)
        assert entry.kind == "create_model", entry.kind
        return create.prepare(run, entry, body)
