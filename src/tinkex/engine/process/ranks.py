"""The ranks of one engine: the first leads and starts the others, which follow it.

The leader alone hears commands and answers them. Every other rank runs the same worker, and is
told, in order, what the leader's is about to do: a command to take in, a turn to make. Nothing
else may decide differently on two ranks (see `collectives.agree`). If any of them ends, all do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar

import torch

from tinkex.engine import collectives
from tinkex.engine.collectives import Ranks
from tinkex.engine.errors import ModelError
from tinkex.engine.frames import Closed, receive_frame, send_frame
from tinkex.engine.limits import Limits
from tinkex.engine.model.config import ModelConfig
from tinkex.engine.own_folder import OwnFolder
from tinkex.engine.process.orphans import ending_with_parent
from tinkex.engine.sampling.limits import SamplerLimits
from tinkex.engine.settings import MOST_RANKS, WorkerConfig

MAKE_TURN, GET_READY, COMPILE_MORE = "turn", "get ready", "compile more"
"""Notes beside commands."""

L = TypeVar("L", Limits, SamplerLimits)


class Rank(collectives.Voice, Protocol):
    """One rank's connection to the others."""

    ranks: Ranks
    address: str
    """The address where they meet."""


class Leader:
    """The first rank's side: announces what it does before it does it."""

    def __init__(self, config: WorkerConfig) -> None:
        """Start the other ranks; they load while this one does."""
        if not 2 <= config.ranks <= MOST_RANKS:
            raise ModelError(f"ranks: {config.ranks} is not between 1 and {MOST_RANKS}")
        self.ranks = Ranks(0, config.ranks)
        self._folder = OwnFolder("tinkex-meeting-")
        self.address = f"file://{self._folder.path / 'meeting'}"
        self._followers = [_Process(rank) for rank in range(1, config.ranks)]
        for follower in self._followers:
            send_frame(follower.stream, (config, Ranks(follower.rank, config.ranks), self.address))
        for follower in self._followers:
            threading.Thread(target=self._watch, args=(follower,), daemon=True).start()

    def tell(self, note: Any) -> None:
        for follower in self._followers:
            send_frame(follower.stream, note)

    def agree(self, value: Any) -> Any:
        self.tell(value)
        return value

    def close(self) -> None:
        """End the other ranks."""
        followers, self._followers = self._followers, []
        for follower in followers:
            follower.close()
        self._folder.close()

    def _watch(self, follower: _Process) -> None:
        """End the engine if a rank is gone: the server starts a new one."""
        code = follower.process.wait()
        if follower in self._followers:
            print(f"rank {follower.rank} ended with status {code}", file=sys.stderr, flush=True)
            os._exit(1)


class Follower:
    """Another rank's side: follows the leader's announcements."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self.config: WorkerConfig
        self.config, self.ranks, self.address = self.hear()

    def hear(self) -> Any:
        """The leader's next announcement. Raises `Closed` when there will be none."""
        return receive_frame(self._stream)

    def agree(self, value: Any) -> Any:
        return self.hear()


class _Process:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.stream, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tinkex.engine.process.ranks", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def close(self) -> None:
        self.stream.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def join(rank: Rank, first: torch.device) -> torch.device:
    """Meet the other ranks; returns this one's device, given that of the first."""
    ranks, device = rank.ranks, first
    if first.type == "cuda":
        device = torch.device("cuda", (first.index or 0) + ranks.rank)
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, torch.get_num_threads() // ranks.size))
    collectives.join(ranks, rank.address, device)
    collectives.listen_to(rank)
    return device


def agreed_limits(limits: L, config: ModelConfig) -> L:
    """The limits that all ranks have room for: the smallest of every number."""
    if config.shard is None:
        return limits
    values = {field.name: getattr(limits, field.name) for field in fields(limits)}
    whole = {name: value for name, value in values.items() if isinstance(value, int)}
    agreed = collectives.smallest(list(whole.values()))
    return replace(limits, **dict(zip(whole, agreed, strict=True)))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # All its life: what it waits for may be the leader's part of a sum, which never comes.
    with socket.socket(fileno=int(sys.argv[1])) as stream, ending_with_parent(stream):
        from tinkex.engine.process.building import follow

        follower = Follower(stream)
        with contextlib.suppress(Closed):
            follow(follower.config, follower)


if __name__ == "__main__":
    main()
