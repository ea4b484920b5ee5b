"""Paging: which runs are on the device, and which wait in the host's memory for their next command.

A command's run is brought to the device. When the runs there exceed their budget, the least
recently used go to the host, weights and moments as they are, and come back bit for bit in the time
of a copy. A run with a call under way stays, and so does one that came back until it was used. Runs
move in pieces, one at a time. Beyond the host's memory the server must save runs and drop them: it
is told how much room there is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

import torch

from tinkex.engine.adapters.layout import Adapter, AdapterLayout
from tinkex.engine.errors import EngineError
from tinkex.engine.messages import RunInfo
from tinkex.engine.pieces import Pieces, at_once
from tinkex.engine.training.host_memory import HostMemory, Kept
from tinkex.engine.training.optimizers import Bounds, make_optimizer
from tinkex.engine.training.run import Run

_GRADIENTS = 8
"""Bytes per number of a resident run besides its state: accumulated gradient, and what a call
adds."""

_MASTER, _GRADIENT = "weights", "gathered gradient"
"""Vectors of a run beside those that its optimizer has names for."""


@dataclass(frozen=True, slots=True)
class _Parked:
    """A run in the host's memory."""

    layout: AdapterLayout  # of its adapter
    info: RunInfo  # what the run is known by
    gathered: float  # as in `Run`
    bounds: Bounds | None  # as in `Run`
    master: Kept  # weights in float32
    state: dict[str, Kept]  # the optimizer's, by name
    gradient: Kept | None  # None if nothing was accumulated

    @property
    def parts(self) -> Iterator[Kept]:
        yield self.master
        yield from self.state.values()
        if self.gradient is not None:
            yield self.gradient


class Residency:
    """The runs of one engine by name. Without a budget all stay on the device."""

    def __init__(
        self,
        host: HostMemory,
        dtype: torch.dtype,
        budget: int | None,
        in_use: Callable[[], Container[Run]],
    ) -> None:
        self._host, self._dtype, self._budget = host, dtype, budget
        self._in_use = in_use
        self._here: OrderedDict[str, Run] = OrderedDict()
        self._parked: dict[str, _Parked] = {}
        self._leaving: str | None = None
        self._arriving: str | None = None
        self._unused: set[str] = set()  # came back and were not used yet
        self.moves = 0

    def __len__(self) -> int:
        return len(self._here) + len(self._parked)

    def __contains__(self, name: str) -> bool:
        return name in self._here or name in self._parked

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(run.nbytes for run in self._here.values())

    @property
    def room(self) -> int | None:
        """Bytes of all runs together, on the device and in the host's memory; None: no bound."""
        return None if self._budget is None else self._budget + self._host.budget

    @property
    def host_bytes(self) -> int:
        return self._host.used

    @property
    def parked(self) -> int:
        """Runs in the host's memory."""
        return len(self._parked)

    def is_parked(self, name: str) -> bool:
        """Whether it is in the host's memory; `arrival` brings it back."""
        return name in self._parked

    def is_leaving(self, name: str) -> bool:
        """Whether it is being moved there, and can neither be used nor dropped."""
        return name == self._leaving

    def get(self, name: str) -> Run:
        """The run on the device, brought back at once if need be. Raises KeyError."""
        at_once(self.arrival(name))
        self._unused.discard(name)
        self._here.move_to_end(name)
        return self._here[name]

    def arrival(self, name: str) -> Pieces[None]:
        """Bring the run back to the device if it is not there. Raises `EngineError` if the host's
        memory is full."""
        if name not in self._parked:
            return
        self._arriving = name
        try:
            yield from self._let_go(self._size_of(name))
            self._here[name] = yield from self._brought(self._parked[name])
        finally:
            self._arriving = None
        for kept in self._parked.pop(name).parts:
            self._host.free(kept)
        self._unused.add(name)

    def add(self, name: str, run: Run) -> None:
        self._here[name] = run

    def drop(self, name: str) -> None:
        if name in self._parked:
            for kept in self._parked.pop(name).parts:
                self._host.free(kept)
        else:
            del self._here[name]
            self._unused.discard(name)

    def make_room(self, layout: AdapterLayout, optimizer: str) -> Pieces[None]:
        """Move other runs to the host until a run of this layout fits. Raises `EngineError` if the
        host's memory is full too."""
        return self._let_go(self.size(layout, optimizer))

    def prepare(self) -> bool:
        """Pin a piece of what the next run to leave will need, once the device is half full,
        because pinning takes longer than the copy. False if nothing is left to do."""
        if self._budget is None or not self._here:
            return False
        if 2 * sum(map(self._size_of, self._here)) < self._budget:
            return False
        run = next(iter(self._here.values()))
        vectors = [run.adapter.master] * (2 + len(run.optimizer.tensors))
        return self._host.prepare(vector.nbytes for vector in vectors)

    def admit(self, names: Sequence[str]) -> bool:
        """Whether these runs fit on the device together, besides all that cannot leave it. One
        alone always fits, since there is no smaller unit."""
        if self._budget is None:
            return True
        stay = self._staying()
        wanted = {name for name in names if name in self} | stay
        return len(wanted) <= 1 or sum(map(self._size_of, wanted)) <= self._budget

    def bytes_of(self, layout: AdapterLayout) -> int:
        """Bytes of any run of this layout on the device, at most."""
        return self.size(layout, "adamw")

    def size(self, layout: AdapterLayout, optimizer: str) -> int:
        """Bytes of a run on the device."""
        moments = {"adamw": 8}.get(optimizer, 4)
        working = 0 if self._dtype == torch.float32 else self._dtype.itemsize
        return layout.size * (4 + working + moments + _GRADIENTS)

    def _size_of(self, name: str) -> int:
        if name in self._parked:
            return self.size(self._parked[name].layout, self._parked[name].info.optimizer)
        return self.size(self._here[name].adapter.layout, self._here[name].optimizer.name)

    def _staying(self) -> set[str]:
        """Runs that are on the device, or about to be, and must not be moved."""
        in_use = self._in_use()
        staying = {name for name, run in self._here.items() if run in in_use} | self._unused
        return staying if self._arriving is None else staying | {self._arriving}

    def _let_go(self, wanted: int) -> Pieces[None]:
        """Move runs to the host until so many bytes are free, as far as they can leave."""
        while self._budget is not None:
            staying = self._staying()
            leaving = next((name for name in self._here if name not in staying), None)
            taken = sum(map(self._size_of, self._here))
            if taken + wanted <= self._budget or leaving is None:
                return
            yield from self._park(leaving)

    def _park(self, name: str) -> Pieces[None]:
        run = self._here[name]
        vectors = [run.adapter.master, *run.optimizer.tensors.values()]
        vectors += [] if run.gradient is None else [run.gradient]
        needed = self._host.needs(vector.nbytes for vector in vectors)
        if self._host.used + needed > self._host.budget:
            raise EngineError(
                f"the memory for runs is full: {len(self._here)} are on the device, "
                f"{len(self._parked)} take {self._host.used} of {self._host.budget} bytes of the "
                "host's memory; serve with a larger --engine host_run_bytes or run_bytes, or a "
                "smaller --engine max_runs"
            )
        self._leaving = name
        try:
            self._parked[name] = yield from self._left(run)
        finally:
            self._leaving = None
        del self._here[name]
        self.moves += 1

    def _left(self, run: Run) -> Pieces[_Parked]:
        kept: dict[str, Kept] = {}
        vectors = {_MASTER: run.adapter.master, **run.optimizer.tensors}
        if run.gradient is not None:
            vectors[_GRADIENT] = run.gradient
        try:
            for key, vector in vectors.items():
                kept[key] = yield from self._host.keep(vector)
        except BaseException:
            for each in kept.values():
                self._host.free(each)
            raise
        master, gradient = kept.pop(_MASTER), kept.pop(_GRADIENT, None)
        layout = run.adapter.layout
        return _Parked(layout, run.info, run.gathered, run.bounds, master, kept, gradient)

    def _brought(self, parked: _Parked) -> Pieces[Run]:
        master = yield from self._host.bring(parked.master)
        optimizer = make_optimizer(parked.info.optimizer, parked.layout, torch.device("meta"))
        for key, kept in parked.state.items():
            optimizer.tensors[key] = yield from self._host.bring(kept)
        gradient = None
        if parked.gradient is not None:
            gradient = yield from self._host.bring(parked.gradient)
        adapter = Adapter(parked.layout, master, self._dtype)
        return Run(adapter, optimizer, parked.info.step, gradient, parked.gathered, parked.bounds)
