"""States of sequences in recurrent layers: one place each, next to the pages of attention layers.

A branch that is computed holds a place. Its state at the end of a page can be kept as a snapshot,
filed under that page's key: the prefix cache finds a prefix only as far as there is a snapshot. A
branch that loses its pages loses its place too, and is computed again from a snapshot or from its
start. Guessed tokens change a state only when they are confirmed: see `guessed_states`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tinkex.engine.kernels.available import runs_triton
from tinkex.engine.model.block_configs import GatedDeltaConfig
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.linear.delta import DeltaInputs, conv_states, delta_states, heads_of
from tinkex.engine.model.linear.stretches import Stretches
from tinkex.engine.model.passes import Recur
from tinkex.engine.sampling.cache.guessed_states import GuessedRecurrence
from tinkex.engine.sampling.cache.kv_cache import PAGE_SIZE, zeros
from tinkex.engine.sampling.request import Branch
from tinkex.engine.sampling.scheduling.chunks import Chunk


def state_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of one place over all layers."""
    return sum(
        (mixer.conv_width - 1) * mixer.channels * dtype.itemsize
        + mixer.value_heads * mixer.key_dim * mixer.value_dim * torch.float32.itemsize
        for mixer in config.recurrent.values()
    )


def states_for(decoder: Decoder, rows: int, snapshots: int) -> SequenceStates | None:
    """The states; None if no layer keeps any."""
    if not decoder.config.recurrent:
        return None
    return SequenceStates(decoder.config, rows, snapshots, decoder.device, decoder.dtype)


class SequenceStates:
    """`rows` places for branches and `snapshots` more."""

    def __init__(
        self, config: ModelConfig, rows: int, snapshots: int,
        device: torch.device, dtype: torch.dtype,
    ) -> None:  # fmt: skip
        places = rows + snapshots
        self.scratch = places
        """Includes one more place, for rows of a step that only pad."""
        self.windows: dict[int, Tensor] = {}
        self.matrices: dict[int, Tensor] = {}
        self._stores: list[Tensor] = []
        """All places, [layers, places, …], so that a place is copied at once."""
        for mixer in dict.fromkeys(config.recurrent.values()):
            layers = [layer for layer, own in config.recurrent.items() if own == mixer]
            front = (len(layers), places + 1)
            window = (*front, mixer.conv_width - 1, mixer.channels)
            matrix = (*front, mixer.value_heads, mixer.key_dim, mixer.value_dim)
            stores = zeros(window, dtype, device), zeros(matrix, torch.float32, device)
            self.windows |= dict(zip(layers, stores[0], strict=True))
            self.matrices |= dict(zip(layers, stores[1], strict=True))
            self._stores += stores
        self._device = device
        self._free = list(range(rows))
        self._spare = list(range(rows, places))
        self._place: dict[Branch, int] = {}
        self._reach: dict[Branch, int] = {}
        self._snapshots: OrderedDict[bytes, int] = OrderedDict()
        self._trail: dict[Branch, bytes] = {}
        self._guessed: tuple[GuessedRecurrence, list[Chunk]] | None = None

    def __contains__(self, key: bytes) -> bool:
        """Whether there is a snapshot at the end of the page with this key."""
        return key in self._snapshots

    def begin(self, chunks: Sequence[Chunk]) -> Recur:
        """The recurrent layers of a step of these chunks, from the states of their branches."""
        places = [self._enter(chunk) for chunk in chunks]
        self._reach.update((chunk.branch, chunk.known) for chunk in chunks)
        lengths = [chunk.stop - chunk.start for chunk in chunks]
        self._guessed = None
        if any(chunk.guesses for chunk in chunks):
            stores = self.windows, self.matrices
            guessed = GuessedRecurrence(*stores, places, lengths, self._device)
            self._guessed = guessed, list(chunks)
            return guessed
        if runs_triton(next(iter(self.windows.values()))):
            from tinkex.engine.sampling.cache.device_states import ChunkRecurrence

            return ChunkRecurrence(self, places, lengths, self._device)
        return StepRecurrence(self, places, lengths, self._device)

    def confirm(self, branch: Branch, length: int) -> None:
        """Confirm so many of the branch's tokens, guesses of the last step included."""
        if self._guessed is None or self._reach.get(branch, length) >= length:
            return
        recurrence, chunks = self._guessed
        member = next(index for index, chunk in enumerate(chunks) if chunk.branch is branch)
        recurrence.confirm(member, length - chunks[member].known)
        self._reach[branch] = length

    def holds(self, chunk: Chunk) -> bool:
        """Whether the branch's state is the one before the chunk."""
        return self._reach.get(chunk.branch) == chunk.start and chunk.branch in self._place

    def advance(self, branches: Sequence[Branch], ahead: int) -> list[int]:
        """The places of branches that get their next token; `ahead` tokens beyond what is known."""
        self._reach.update((branch, branch.length + ahead) for branch in branches)
        return [self._place[branch] for branch in branches]

    def fork(self, source: Branch, branch: Branch) -> bool:
        """Give the branch a copy of the source's state; False if no place is free."""
        self._sweep()
        if not self._free:
            return False
        self._place[branch] = place = self._free.pop()
        self._reach[branch] = self._reach[source]
        self._copy(self._place[source], place)
        return True

    def keep(self, branch: Branch, key: bytes, held: Callable[[bytes], bool]) -> None:
        """Keep the branch's current state under a page's key, if there is room. Of the states that
        a branch passes while it decodes only the latest is kept. `held` says whether a key's page
        is in use: those snapshots are not dropped."""
        if branch.started:
            before = self._trail.pop(branch, None)
            if before is not None:
                self.drop(before)
        if key in self._snapshots or not (self._spare or self._make_room(held)):
            return
        self._snapshots[key] = place = self._spare.pop()
        self._copy(self._place[branch], place)
        if branch.started:
            self._trail[branch] = key

    def drop(self, key: bytes) -> None:
        """Drop a snapshot, if there is one."""
        place = self._snapshots.pop(key, None)
        if place is not None:
            self._spare.append(place)

    def drop_all(self) -> None:
        for key in list(self._snapshots):
            self.drop(key)

    def _enter(self, chunk: Chunk) -> int:
        """The place of a chunk's branch, with its state before the chunk."""
        branch = chunk.branch
        if chunk.start and self._reach.get(branch) == chunk.start:
            return self._place[branch]
        if branch not in self._place:
            self._sweep()
            self._place[branch] = self._free.pop()
        place = self._place[branch]
        if chunk.start:
            key = branch.keys.keys[chunk.start // PAGE_SIZE - 1]
            self._snapshots.move_to_end(key)
            self._copy(self._snapshots[key], place)
        else:
            for store in self._stores:
                store[:, place].zero_()
        return place

    def _sweep(self) -> None:
        """Take back the places of branches that hold no pages."""
        for branch in [one for one in self._place if not one.pages]:
            self._free.append(self._place.pop(branch))
            self._reach.pop(branch)
            self._trail.pop(branch, None)

    def _make_room(self, held: Callable[[bytes], bool]) -> bool:
        oldest = next((key for key in self._snapshots if not held(key)), None)
        if oldest is not None:
            self.drop(oldest)
        return oldest is not None

    def _copy(self, source: int, target: int) -> None:
        for store in self._stores:
            store[:, target].copy_(store[:, source])


class StepRecurrence(Recur):
    """For chunks laid end to end; rows after them only pad."""

    def __init__(
        self, states: SequenceStates, places: Sequence[int], lengths: Sequence[int],
        device: torch.device,
    ) -> None:  # fmt: skip
        self._states = states
        self._places = torch.tensor(places, device=device)
        self._stretches = Stretches(lengths, device)

    def heads(
        self, layer: int, channels: Tensor, weight: Tensor, config: GatedDeltaConfig
    ) -> tuple[Tensor, Tensor, Tensor]:
        store, own = self._states.windows[layer], channels[: self._stretches.tokens]
        before = store.index_select(0, self._places)
        found, after = conv_states(own, weight, self._stretches, before)
        store.index_copy_(0, self._places, after)
        return heads_of(_padded(found, len(channels)), config)

    def delta(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, write: Tensor
    ) -> Tensor:
        store, rows = self._states.matrices[layer], len(v)
        tokens = self._stretches.tokens
        own = DeltaInputs.by_value_head(*(x[:tokens] for x in (q, k, v, decay, write)))
        initial = store.index_select(0, self._places)
        found, final = delta_states(own, self._stretches, initial)
        store.index_copy_(0, self._places, final)
        return _padded(found, rows)


def _padded(x: Tensor, rows: int) -> Tensor:
    short = rows - len(x)
    return torch.cat([x, x.new_zeros(short, *x.shape[1:])]) if short else x
