"""The table of operation kinds. Adding a kind is adding its module and its line here.

Log, scheduler, store and routes ask the kind; none of them knows one by name.
"""

from __future__ import annotations

from tinkex.server.operations import create, forward, load, optim_step, save
from tinkex.server.operations.base import Around, OperationKind, Prepared
from tinkex.server.operations.log import Entry
from tinkex.server.operations.run import Run
from tinkex.server.refusals import Refusal

KINDS: tuple[OperationKind, ...] = (
    create.CREATE_MODEL,
    load.CREATE_FROM,
    forward.FORWARD,
    forward.FORWARD_BACKWARD,
    optim_step.OPTIM_STEP,
    save.SAVE_WEIGHTS,
    save.SAVE_WEIGHTS_FOR_SAMPLER,
    save.SAVE_WEIGHTS_EXTERNAL,
    load.LOAD_WEIGHTS,
)

PINNING = frozenset(kind.name for kind in KINDS if kind.pins)
"""The names of the kinds whose files are kept, for the store."""

_BY_NAME = {kind.name: kind for kind in KINDS}


def named(name: str) -> OperationKind:
    """The kind that the store knows by this name."""
    return _BY_NAME.get(name) or OperationKind(name=name, changes="weights", prepare=_unknown)


async def prepare(around: Around, run: Run, entry: Entry, body: bytes) -> Prepared:
    """Make an operation ready for the engine. Raises `Refusal`."""
    if entry.kind.changes == "weights":
        run.gaps.change_weights()
    return await named(entry.kind.name).prepare(around, run, entry, body)


async def _unknown(_: Around, __: Run, entry: Entry, ___: bytes) -> Prepared:
    raise Refusal(
        f"this server knows no operation {entry.kind.name!r}: another version of it accepted this"
    )
