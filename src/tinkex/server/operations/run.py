"""A training run in memory: its log, where its state is resident, its pending work.

A run's live state is in one engine's memory or in none. Its snapshot and the operations after it,
on disk, rebuild it. Only the methods here change a run.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tinkex.server.engines.residence import Residence
from tinkex.server.operations.log import CREATION, Entry, RunLog
from tinkex.server.operations.sampler_gap import GapWatch
from tinkex.server.storage.database.runs import RunRow
from tinkex.server.storage.database.snapshots import SnapshotRow

NEVER_MADE = "its creation failed"
_FIRST_STAY_S, _LONGEST_STAY_S = 1.0, 60.0


class Run:
    """One live run, and the only way to change it.

    ================  =============  =============  ================================================
    transition        from           to             when
    ================  =============  =============  ================================================
    where its state lives
    `take_place`      nowhere        arriving       before it is sent for: room is counted by places
    `settle`          arriving       resident       the engine has its state, or an empty log for it
    `ask_to_leave`    resident       leaving        others wait for room, another engine has less to
                                                    do, or nothing is asked of it
    `stay`            leaving        resident       letting it go failed; it is left alone a while
    `leave`           anywhere       nowhere        the engine let it go, lost it, or died

    errands: what is with the engine, or being written down
    `begin_errand`    not sending    sending        the scheduler starts one; `active` counts it
    `sent`            sending        not sending    the engine may get the run's next
    `end_errand`      sending or not not sending    it is over, however it ended

    snapshots
    `owe_snapshot`    none is due    one is due     steps, bytes, time or a load say so
    `begin_snapshot`  either         none is due    it is being taken
    `cover`           the old one    the new one    its row is committed
    `fall_back`       the newest     the one before its bytes are wrong

    its end
    `stop`            going on       stopped        its owner wishes it
    `break_down`      going on       broken         it can never be made whole again
    ================  =============  =============  ================================================
    """

    __slots__ = (
        "_active",
        "_before",
        "_broken",
        "_failed_evictions",
        "_is_settled",
        "_latest",
        "_leaving",
        "_place",
        "_progress",
        "_restoring",
        "_row",
        "_saves",
        "_sending",
        "_settled_at",
        "_snapshot",
        "_snapshot_at",
        "_snapshot_due",
        "_spare_bytes",
        "_stays_until",
        "_steps",
        "_stopped",
        "_turns",
        "_used_at",
        "gaps",
        "log",
    )

    def __init__(
        self,
        row: RunRow,
        log: RunLog,
        snapshot: SnapshotRow | None = None,
        before: SnapshotRow | None = None,
        *,
        spare_bytes: int = 0,
        now: float = 0.0,
    ) -> None:
        self.log = log
        self.gaps = GapWatch()
        self._row = row
        self._place: Residence | None = None
        self._is_settled = self._leaving = False
        self._settled_at = self._stays_until = self._used_at = 0.0
        self._failed_evictions = 0
        self._turns = self._sending = self._active = 0
        self._latest: asyncio.Task[None] | None = None
        self._saves: set[asyncio.Task[None]] = set()
        self._progress = asyncio.Event()
        self._snapshot, self._before, self._spare_bytes = snapshot, before, spare_bytes
        self._steps = 0
        self._snapshot_at, self._snapshot_due = now, False
        self._restoring: str | None = None
        self._broken: str | None = None
        self._stopped = False

    @property
    def model_id(self) -> str:
        return self._row.model_id

    @property
    def tenant(self) -> str:
        return self._row.tenant

    @property
    def row(self) -> RunRow:
        return self._row

    def learn(self, row: RunRow) -> None:
        """Note what the checkpoint said that it was made from."""
        self._row = row

    def rename(self, name: str | None) -> None:
        """Set the name that its owner gave it."""
        self._row = replace(self._row, name=name)

    # ---- where its state lives

    @property
    def place(self) -> Residence | None:
        """The memory that has its state or is about to get it."""
        return self._place

    @property
    def residence(self) -> Residence | None:
        """The memory that has its state."""
        return self._place if self._is_settled else None

    @property
    def life(self) -> int:
        """The life of the engine that has its state; 0 if none has."""
        return self._place.life if self._place is not None and self._is_settled else 0

    @property
    def settled_at(self) -> float:
        return self._settled_at

    @property
    def is_leaving(self) -> bool:
        return self._leaving

    @property
    def stays_until(self) -> float:
        """When it may be asked to leave again."""
        return self._stays_until

    @property
    def failed_evictions(self) -> int:
        """How often in a row it could not be dropped."""
        return self._failed_evictions

    @property
    def used_at(self) -> float:
        """When it last got a request."""
        return self._used_at

    def use(self, now: float) -> None:
        self._used_at = now

    def take_place(self, place: Residence) -> None:
        self._place, self._is_settled, self._leaving = place, False, False

    def settle(self, now: float) -> None:
        self._is_settled = self._place is not None
        self._settled_at = self._stays_until = now
        self._failed_evictions = 0

    def ask_to_leave(self, why: str | None = None) -> None:
        """Ask it to leave. `why` is shown to clients that wait for it meanwhile."""
        self._leaving = self._is_settled
        if why is not None and self._leaving:
            self._restoring = why

    def stay(self, now: float) -> None:
        pause = _FIRST_STAY_S * 2.0**self._failed_evictions
        self._leaving, self._restoring = False, None
        self._stays_until = now + min(pause, _LONGEST_STAY_S)
        self._failed_evictions += 1

    def leave(self) -> None:
        self._place, self._is_settled, self._leaving = None, False, False

    # ---- errands

    @property
    def active(self) -> int:
        """How many of its errands are at the engine or being recorded."""
        return self._active

    @property
    def is_sending(self) -> bool:
        return self._sending != 0

    def errands_before(self, entry: Entry) -> list[asyncio.Task[None]]:
        """Errands that must be over before the end of this operation can be recorded."""
        saves = [] if entry.kind.beside_saves else self._saves
        return [*saves, *([] if self._latest is None else [self._latest])]

    def begin_errand(self) -> int:
        """Start an errand. The returned number is for `sent` and `end_errand`."""
        self._turns += 1
        self._sending = self._turns
        self._active += 1
        return self._turns

    def sent(self, errand: int) -> None:
        """This errand has sent all its commands. A late call of an older errand changes nothing."""
        if self._sending == errand:
            self._sending = 0

    def end_errand(self, errand: int) -> None:
        self._active -= 1
        self.sent(errand)
        self._progress.set()

    def carried_by(self, task: asyncio.Task[None], entry: Entry) -> None:
        """The next operation's end is recorded after this one's, unless this one only saves."""
        if not entry.kind.saves:
            self._latest = task
            return
        self._saves.add(task)
        task.add_done_callback(self._saves.discard)

    async def progress(self) -> None:
        """Wait until something of this run has ended."""
        self._progress.clear()
        await self._progress.wait()

    def ended(self, entry: Entry, failed: bool) -> None:
        """One of its operations is over and its end is on disk."""
        self.log.finish(entry, failed)
        if failed and entry.seq_id == CREATION:
            self._broken = NEVER_MADE
        if not failed:
            self._steps += entry.kind.is_step
            self._snapshot_due = self._snapshot_due or entry.kind.pins

    # ---- snapshots

    @property
    def snapshot(self) -> SnapshotRow | None:
        """The snapshot it is rebuilt from; without one, it is rebuilt from its beginning."""
        return self._snapshot

    @property
    def before(self) -> SnapshotRow | None:
        """The older snapshot, for the case that the newest is damaged."""
        return self._before

    @property
    def spare_bytes(self) -> int:
        """Size of the bodies of the operations between the two, kept for that case."""
        return self._spare_bytes

    @property
    def snapshot_due(self) -> bool:
        return self._snapshot_due

    @property
    def steps_since_snapshot(self) -> int:
        return self._steps

    @property
    def snapshot_at(self) -> float:
        """When the newest snapshot was begun."""
        return self._snapshot_at

    def owe_snapshot(self) -> None:
        self._snapshot_due = True

    def begin_snapshot(self, now: float) -> None:
        self._snapshot_due = False
        self._steps, self._snapshot_at = 0, now

    def cover(self, newest: SnapshotRow, before: SnapshotRow | None, spare_bytes: int) -> None:
        self._snapshot, self._before, self._spare_bytes = newest, before, spare_bytes
        self.log.cover(newest.seq_id)

    def fall_back(self) -> None:
        self._snapshot, self._before, self._spare_bytes = self._before, None, 0

    # ---- what was lost, and its end

    @property
    def restoring(self) -> str | None:
        """What of it is being rebuilt or waited for, in words."""
        return self._restoring

    def restore(self, what: str | None) -> None:
        self._restoring = what

    @property
    def broken(self) -> str | None:
        return self._broken

    @property
    def stopped(self) -> bool:
        return self._stopped

    @property
    def refusal(self) -> str | None:
        """Why it accepts no more work, if that is so."""
        return "it was stopped by its owner" if self._stopped else self._broken

    def stop(self) -> None:
        self._stopped = True

    def break_down(self, why: str) -> None:
        self._broken = why
