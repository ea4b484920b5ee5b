"""What each kind of operation means: its body becomes engine commands, their result an outcome.

A body is checked here, when its turn has come: a `Refusal` raised here is the operation's failed
future. Adding a kind is adding a module and a line.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinkex.server.kinds import creation, optimizing
from tinkex.server.kinds.forward import Forward
from tinkex.server.kinds.loading import Loading
from tinkex.server.kinds.prepared import Prepared
from tinkex.server.kinds.saving import FOLDER_KINDS, Saving
from tinkex.server.log import MUTATING, Entry
from tinkex.server.runs import Run


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
            return optimizing.prepare(run, entry, body)
        if entry.kind in FOLDER_KINDS:
            return self.saving.prepare(run, entry, body)
        if entry.kind == "load_weights":
            return await self.loading.prepare(run, entry, body)
        if entry.kind == "create_from":
            return await self.loading.prepare_creation(run, entry, body)
        assert entry.kind == "create_model", entry.kind
        return creation.prepare(run, entry, body)
