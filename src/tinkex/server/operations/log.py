"""The order of one run's operations, each executed once. Pure: no disk, no clock, no loop.

The rules:

1. Operations take effect in `seq_id` order, whatever order they arrive in.
2. `(model_id, seq_id)` names an operation. A repeated request gets the same operation.
3. A missing `seq_id` is waited for, because the first chunk of a chunked call is sent last and may
   be retried. The wait ends `gap_timeout_s` after the latest chunk behind the gap arrived (and at
   most `GAP_CAP` times that after the first). It ends `gap_grace_s` after the arrival of an
   operation that is never part of a chunked call: the client has then moved on, and only a
   reordering network explains the gap.
4. After that the missing id is skipped for good. If it arrives later it is `late` and fails, since
   running it would break rule 1.
5. A failed operation changes nothing, and those behind it still run. Only the creation is
   different: the others wait for it, and fail if it failed.

When the engine loses the run's state, `rewind` puts everything after the last snapshot back in
line: finished operations run again as `replay`, unfinished ones run as if for the first time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tinkex.server.operations.kind import Kind

State = Literal["accepting", "waiting", "running", "done", "failed"]

CREATION = 0
"""The `seq_id` of the operation that makes a run."""
GAP_CAP = 5


@dataclass(slots=True, eq=False)
class Entry:
    """One operation of a run, from its arrival on."""

    # The id that its client polls for.
    request_id: str
    # Its place in the run's order.
    seq_id: int
    # What it does.
    kind: Kind
    # Hash of its body: a repeated request must have the same.
    digest: bytes
    # When it arrived, on the monotonic clock.
    arrived: float
    # Size of its body on the disk.
    payload_bytes: int = 0
    # Size of the routes on the disk that it replayed.
    routes_bytes: int = 0
    # The blob with them.
    routes_blob: str | None = None
    # Those of the first time, read back for a repetition.
    routes: bytes | None = None
    # The blob with the body, if it is not in the row.
    payload_blob: str | None = None
    # Its progress.
    state: State = "accepting"
    # Whether it had finished before and is repeated after a loss.
    replay: bool = False
    # How often an engine died while it ran this.
    deaths: int = 0
    # When it was last sent to an engine, on the monotonic clock.
    begun: float | None = None
    # The body, kept in memory while it is likely to be needed.
    body: bytes | None = None
    # The body decoded, if that was done already.
    content: object | None = None

    @property
    def pending(self) -> bool:
        return self.state in ("accepting", "waiting")

    @property
    def stored_bytes(self) -> int:
        """Size of its body and its routes on the disk."""
        return self.payload_bytes + self.routes_bytes

    @property
    def held_bytes(self) -> int:
        """Size of its body in memory."""
        return 0 if self.body is None else len(self.body)


class Gap(NamedTuple):
    """The run waits for `missing`, at most until `deadline` on the monotonic clock."""

    missing: int
    deadline: float


class RunLog:
    """The operations of one run after its last snapshot, which covers everything up to `base`.

    `retained_bytes` is their size on disk, bodies and replayed routes; `held_bytes` is the size of
    the bodies kept in memory.
    """

    def __init__(
        self, base: int = -1, gap_timeout_s: float = 60.0, gap_grace_s: float = 5.0
    ) -> None:
        self.base = base
        self.entries: dict[int, Entry] = {}
        self.retained_bytes = 0
        self.held_bytes = 0
        self._cursor = base
        self._high = base
        self._gap_timeout_s = gap_timeout_s
        self._gap_grace_s = gap_grace_s

    def find(self, seq_id: int) -> Entry | None:
        return self.entries.get(seq_id)

    def is_late(self, seq_id: int) -> bool:
        """Whether the id was skipped: a later operation has begun."""
        return seq_id <= self._high

    def admit(self, entry: Entry) -> None:
        """Add a new entry. It runs only once it is no longer `accepting`."""
        self.entries[entry.seq_id] = entry
        self.retained_bytes += entry.stored_bytes
        self.held_bytes += entry.held_bytes
        if entry.state in ("done", "failed"):
            self._high = max(self._high, entry.seq_id)

    def accept(self, entry: Entry) -> None:
        """The entry is durable now: it may run when its turn comes."""
        entry.state = "waiting"

    def withdraw(self, entry: Entry) -> None:
        """Remove an entry, for instance because it could not be made durable."""
        del self.entries[entry.seq_id]
        self.retained_bytes -= entry.stored_bytes
        self.held_bytes -= entry.held_bytes

    def next(self, now: float) -> Entry | Gap | None:
        """The operation to run now, the gap to wait for, or None when nothing can run."""
        while True:
            expected = self.entries.get(self._cursor + 1)
            if expected is None:
                gap = self._gap(now)
                if gap is not None or not self._has_more():
                    return gap
                self._cursor = self._before_next()
                continue
            if expected.state == "waiting":
                return expected
            if expected.state == "accepting":
                return None
            self._cursor += 1

    def resume(self, now: float) -> Entry | Gap | None:
        """The operation that a run which is not resident must be restored for.

        That is an operation which had begun and was never finished, else what `next` gives.
        """
        for seq_id in sorted(self.entries):
            entry = self.entries[seq_id]
            lost = entry.state in ("waiting", "running") and not entry.replay
            if seq_id <= self._high and lost:
                return entry
        self._cursor = max(self._cursor, self._high)
        return self.next(now)

    def may_begin(self, entry: Entry) -> bool:
        """Whether the run exists: no operation may overtake the run's creation."""
        first = self.entries.get(CREATION)
        return first is None or first is entry or first.state == "done"

    @property
    def only_created(self) -> bool:
        """Whether the run has only been created, with fresh adapters."""
        first = self.entries.get(CREATION)
        return first is not None and not first.kind.pins and self._cursor == CREATION

    @property
    def never_made(self) -> bool:
        """Whether the run's creation failed for good."""
        first = self.entries.get(CREATION)
        return first is not None and first.state == "failed"

    def begin(self, entry: Entry, now: float = 0.0) -> None:
        """The entry that `next` gave is being sent to the engine."""
        entry.state, entry.begun = "running", now
        self._cursor = entry.seq_id
        self._high = max(self._high, entry.seq_id)

    def finish(self, entry: Entry, failed: bool) -> None:
        entry.state = "failed" if failed else "done"
        entry.replay, entry.deaths = False, 0
        self.held_bytes -= entry.held_bytes
        entry.body = entry.content = entry.routes = None

    def repeat_along(self, entry: Entry, routes: bytes | None) -> None:
        """A repeated entry takes these routes, those of its first time."""
        entry.routes = routes

    def keep_routes(self, entry: Entry, blob: str, size: int) -> None:
        """Note that the routes it replayed are durable. A repetition takes them again."""
        entry.routes_blob, entry.routes_bytes = blob, size
        self.retained_bytes += size

    def lose(self, entry: Entry) -> int:
        """The engine died while it ran this. Returns how often that has happened."""
        entry.deaths += 1
        return entry.deaths

    def rewind(self) -> int:
        """Queue everything after the snapshot again. Returns how many finished ones run again."""
        self._cursor = self.base
        for entry in self.entries.values():
            if entry.state == "running":
                entry.state = "waiting"
            elif entry.state == "done" and entry.kind.is_repeated:
                entry.state, entry.replay = "waiting", True
        return sum(entry.replay for entry in self.entries.values())

    def uncover(self, base: int, entries: Iterable[Entry]) -> None:
        """The newest snapshot is unusable: queue what came after an earlier one again."""
        later, self.entries = self.entries, {}
        self.base = base
        for entry in entries:
            self.admit(entry)
        self.entries.update(later)

    def cover(self, seq_id: int) -> list[Entry]:
        """A snapshot holds everything up to `seq_id`: removes and returns those entries."""
        covered = [self.entries[number] for number in self.entries if number <= seq_id]
        for entry in covered:
            self.withdraw(entry)
        self.base = max(self.base, seq_id)
        self._cursor = max(self._cursor, seq_id)
        self._high = max(self._high, seq_id)
        return covered

    @property
    def begun_through(self) -> int:
        """Everything up to this id has begun or was skipped."""
        return self._cursor

    def settled(self, seq_id: int) -> bool:
        """Whether every entry up to `seq_id` is done or failed."""
        return all(
            entry.state in ("done", "failed") and not entry.replay
            for number, entry in self.entries.items()
            if number <= seq_id
        )

    def unfinished(self) -> bool:
        """Whether an operation waits or runs that has never finished."""
        return any(
            entry.state in ("waiting", "running") and not entry.replay
            for entry in self.entries.values()
        )

    def pending_count(self) -> int:
        return sum(entry.pending or entry.state == "running" for entry in self.entries.values())

    def _before_next(self) -> int:
        """The last missing id before the next entry, so that a gap of any width is skipped at once.

        Ids that were skipped before say nothing about those after them.
        """
        following = min((each for each in self.entries if each > self._cursor), default=None)
        if self._cursor < self._high:
            return self._high if following is None else min(following - 1, self._high)
        assert following is not None
        return following - 1

    def _has_more(self) -> bool:
        return self._cursor < self._high or any(True for _ in self._behind())

    def _behind(self) -> Iterator[Entry]:
        for seq_id in sorted(self.entries):
            entry = self.entries[seq_id]
            if seq_id > self._cursor and entry.pending:
                yield entry

    def _gap(self, now: float) -> Gap | None:
        missing = self._cursor + 1
        if missing <= self._high:
            return None
        behind = list(self._behind())
        if not behind:
            return None
        deadline = self._deadline(behind)
        return None if now >= deadline else Gap(missing, deadline)

    def _deadline(self, behind: list[Entry]) -> float:
        follower = next((entry for entry in behind if not entry.kind.chunked), None)
        chunks = behind if follower is None else behind[: behind.index(follower)]
        limits = [] if follower is None else [follower.arrived + self._gap_grace_s]
        if chunks:
            limits.append(max(chunk.arrived for chunk in chunks) + self._gap_timeout_s)
            limits.append(chunks[0].arrived + GAP_CAP * self._gap_timeout_s)
        return min(limits)
