"""An engine whose training state is one number that remembers the whole history in order.

Every change multiplies and adds, so a lost, doubled or reordered operation gives another number for
ever after, and each result shows it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tinkex.engine.messages import (
    Command,
    CreateRun,
    Done,
    DropRun,
    Event,
    Failed,
    ForwardBackward,
    ForwardBackwardResult,
    LoadRun,
    LoraSpec,
    OptimStep,
    OptimStepResult,
    Ready,
    Result,
    RunInfo,
    SaveResult,
    SaveRun,
)
from tinkex.server.engines.worker import Tell, WorkerDied

READY = Ready("SimulatedForCausalLM", 1000, 4096, 1, "cpu", "float32", 64)
_PRIME = 2_147_483_647


def after(state: int, what: int) -> int:
    """The state behind one more change."""
    return (state * 48_271 + what + 1) % _PRIME


class InTwoPlaces(AssertionError):
    """A run is in the memory of two engines that both live."""


class _Refused(Exception):
    """The engine's own answer."""


class Machine:
    """One life of an engine. It dies with probability `mortality` at any message, in or out, fails
    a save with probability `unsaved`, and takes in `room` runs and no run twice, nor one that
    another of the `fleet` still has."""

    def __init__(
        self,
        dice: random.Random,
        mortality: float,
        unsaved: float,
        room: int,
        fleet: list[Machine],
    ) -> None:
        self._dice, self._mortality = dice, mortality
        self._unsaved, self._room = unsaved, room
        self._fleet = fleet
        fleet.append(self)
        self._events: asyncio.Queue[Event | WorkerDied] = asyncio.Queue()
        self.runs: dict[str, int] = {}
        self._dead = False

    async def start(self, tell: Tell) -> Ready:
        await asyncio.sleep(self._dice.choice((0.01, 1.0)))
        self._risk()
        return READY

    async def send(self, command: Command) -> None:
        await asyncio.sleep(self._dice.choice((0.0, 0.0, 0.001)))
        self._risk()
        try:
            result = self._apply(command)
        except KeyError:
            event: Event = Failed(command.op, "lost", f"{command.op}: the run is not here")
        except _Refused as refused:
            event = Failed(command.op, "server", str(refused))
        else:
            event = Done(command.op, result)
        delay = self._dice.choice((0.0, 0.001, 0.05))
        asyncio.get_running_loop().call_later(delay, self._answer, event)

    async def receive(self) -> Sequence[Event]:
        event = await self._events.get()
        if isinstance(event, WorkerDied):
            raise event
        return [event]

    async def stop(self) -> None:
        self._dead = True

    def _answer(self, event: Event) -> None:
        if not self._dead:
            if self._dice.random() < self._mortality:
                self._die()
            else:
                self._events.put_nowait(event)

    def _risk(self) -> None:
        if self._dead or self._dice.random() < self._mortality:
            self._die()
            raise WorkerDied("the simulated engine died")

    def _die(self) -> None:
        if not self._dead:
            self._dead = True
            self._events.put_nowait(WorkerDied("the simulated engine died"))

    def _apply(self, command: Command) -> Result:
        match command:
            case CreateRun():
                self._take_in(command.run, command.lora.seed or 0)
                return RunInfo(command.lora, command.optimizer, 0)
            case ForwardBackward():
                tokens = command.data[0].tokens
                self.runs[command.run] = after(self.runs[command.run], int(tokens[0]))
                outputs = ({"logprobs": np.zeros(len(tokens), np.float32)},)
                return ForwardBackwardResult(outputs, {"loss:sum": float(self.runs[command.run])})
            case OptimStep():
                rate = round(command.params["learning_rate"] * 1e6)
                self.runs[command.run] = after(self.runs[command.run], rate)
                return OptimStepResult({"state": float(self.runs[command.run])})
            case SaveRun():
                if self._dice.random() < self._unsaved:
                    raise _Refused("told not to save")
                text = json.dumps(self.runs[command.run])
                (Path(command.folder) / "adapter_model.safetensors").write_text(text)
                (Path(command.folder) / "adapter_config.json").write_text("{}")
                return SaveResult(0, len(text))
            case LoadRun():
                text = (Path(command.source.path) / "adapter_model.safetensors").read_text()
                self._take_in(command.run, json.loads(text))
                return RunInfo(LoraSpec(8), "adamw", 0)
            case DropRun():
                del self.runs[command.run]
        return None

    def _take_in(self, run: str, state: int) -> None:
        """The server keeps count of places and never asks for more."""
        if run in self.runs or len(self.runs) >= self._room:
            raise _Refused(f"no place for {run} among {sorted(self.runs)}")
        if any(run in other.runs for other in self._fleet if not other._dead):
            raise InTwoPlaces(run)
        self.runs[run] = state
