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
from tinkex.server.workers import WorkerDied

READY = Ready("SimulatedForCausalLM", 1000, 4096, 1, "cpu", "float32", 64)
_PRIME = 2_147_483_647


def after(state: int, what: int) -> int:
    """The state behind one more change."""
    return (state * 48_271 + what + 1) % _PRIME


class Machine:
    """One life of the engine. It dies with probability `mortality` at any message, in or out."""

    def __init__(self, dice: random.Random, mortality: float) -> None:
        self._dice, self._mortality = dice, mortality
        self._events: asyncio.Queue[Event | WorkerDied] = asyncio.Queue()
        self.runs: dict[str, int] = {}
        self._dead = False

    async def start(self) -> Ready:
        await asyncio.sleep(self._dice.choice((0.01, 1.0)))
        self._risk()
        return READY

    async def send(self, command: Command) -> None:
        await asyncio.sleep(self._dice.choice((0.0, 0.0, 0.001)))
        self._risk()
        try:
            result = self._apply(command)
        except KeyError:
            event: Event = Failed(command.op, "server", f"{command.op}: the run is not here")
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
                self.runs[command.run] = command.lora.seed or 0
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
                text = json.dumps(self.runs[command.run])
                (Path(command.folder) / "adapter_model.safetensors").write_text(text)
                (Path(command.folder) / "adapter_config.json").write_text("{}")
                return SaveResult(0, len(text))
            case LoadRun():
                text = (Path(command.folder) / "adapter_model.safetensors").read_text()
                self.runs[command.run] = json.loads(text)
                return RunInfo(LoraSpec(8), "adamw", 0)
            case DropRun():
                del self.runs[command.run]
        return None
