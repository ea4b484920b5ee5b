"""An engine that trains nothing: it counts, in the order it was told, and fails when asked to.

A run's whole state is the list of what was applied to it, so tests can see order, repetition and
loss. `loss_fn` names choose failures: `user_error`, `server_error`, `die` (once per engine life and
datum), `poison` (every time), `slow`. It takes in `max_runs` runs at most, and saves none of the
`unsavable`; `most_runs` is how many it ever held at once. Saves wait for `disk`,
if there is one, and are of the moment they were asked for all the same. A start waits for `place`.
Weights are read by `read`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tinkex.engine.messages import (
    Cancel,
    CheckLoss,
    Command,
    CreateRun,
    Done,
    DropRun,
    DropWeights,
    Event,
    Failed,
    ForwardBackward,
    ForwardBackwardResult,
    LoadRun,
    LoadWeights,
    LoraSpec,
    OptimStep,
    OptimStepResult,
    Progress,
    Ready,
    Result,
    RunInfo,
    Sample,
    SampleResult,
    SaveResult,
    SaveRun,
    ServeRun,
    WeightsRef,
)
from tinkex.engine.messages import Sequence as Sampled
from tinkex.server.engines.worker import EngineSpec, Tell, Worker, WorkerDied

READY = Ready("FakeForCausalLM", 1000, 4096, 1, "cpu", "float32", 64)


class FakeEngine:
    """All lives of one fake engine: give `launch` to the server, look at `workers` afterwards."""

    def __init__(self) -> None:
        self.workers: list[FakeWorker] = []
        self.starts_to_fail = 0
        self.gate: asyncio.Event | None = None
        self.place: asyncio.Event | None = None
        self.max_runs = 1000
        self.most_runs = 0
        self.unsavable: set[str] = set()
        self.ready = READY
        self.disk: asyncio.Event | None = None
        self.died_of: set[str] = set()
        self.read: Callable[[WeightsRef], list[str]] = read_folder

    def launch(self, spec: EngineSpec) -> Worker:
        worker = FakeWorker(self, spec)
        self.workers.append(worker)
        return worker

    @property
    def current(self) -> FakeWorker:
        return self.workers[-1]

    def of(self, index: int) -> FakeWorker:
        """The newest life of one of several engines."""
        return [worker for worker in self.workers if worker.spec.index == index][-1]


class FakeWorker:
    """One life. `runs` maps a run to what was applied to it; `seen` is every command."""

    def __init__(self, engine: FakeEngine, spec: EngineSpec) -> None:
        self.spec = spec
        self._engine = engine
        self._events: asyncio.Queue[Event | WorkerDied] = asyncio.Queue()
        self.runs: dict[str, list[str]] = {}
        self.weights: dict[str, list[str]] = {}
        self.seen: list[Command] = []
        self.held: list[Sample] = []
        self._saving: set[asyncio.Task[None]] = set()
        self.is_dead = False

    async def start(self, tell: Tell) -> Ready:
        if self._engine.place is not None:
            tell("the fake engine waits for a place")
            await self._engine.place.wait()
        if self._engine.starts_to_fail:
            self._engine.starts_to_fail -= 1
            raise WorkerDied("the fake engine was told not to start")
        return self._engine.ready

    async def send(self, command: Command) -> None:
        if self.is_dead:
            raise WorkerDied("the fake engine is dead")
        if self._engine.gate is not None:
            await self._engine.gate.wait()
        self.seen.append(command)
        if self._engine.disk is not None and isinstance(command, SaveRun):
            self._saving.add(asyncio.create_task(self._save_later(command, self._engine.disk)))
            return
        self._answer(command)

    async def _save_later(self, command: SaveRun, disk: asyncio.Event) -> None:
        state = list(self._state(command.run))
        await disk.wait()
        if not self.is_dead:
            self._events.put_nowait(Done(command.op, _write(state, command.folder)))

    def _answer(self, command: Command) -> None:
        try:
            result = self._apply(command)
        except Refused as refused:
            self._events.put_nowait(Failed(command.op, refused.kind, str(refused)))
        except _Deadly:
            self.die()
        else:
            if not isinstance(command, Sample) or command not in self.held:
                self._events.put_nowait(Done(command.op, result))

    async def receive(self) -> Sequence[Event]:
        event = await self._events.get()
        if isinstance(event, WorkerDied):
            raise event
        return [event]

    async def stop(self) -> None:
        self.is_dead = True

    def draw(self, op: str, tokens: list[int]) -> None:
        """As if a sample that is held went on."""
        drawn = np.array(tokens, np.int32)
        self._events.put_nowait(Progress(op, 0, drawn, np.zeros(len(tokens), np.float32)))

    def die(self) -> None:
        """As if killed from outside."""
        self.is_dead = True
        self._events.put_nowait(WorkerDied("the fake engine was killed"))

    def _apply(self, command: Command) -> Result:
        match command:
            case CreateRun():
                self._take_in(command.run, [f"create:{command.lora.seed}"])
                return RunInfo(command.lora, command.optimizer, 0)
            case ForwardBackward():
                return self._forward_backward(command)
            case OptimStep():
                self._state(command.run).append(f"step:{command.params['learning_rate']}")
                return OptimStepResult({"steps": float(len(self._state(command.run)))})
            case SaveRun():
                return self._save(command)
            case ServeRun():
                self.weights[command.weights] = list(self._state(command.run))
            case LoadRun():
                self._load(command)
                return RunInfo(LoraSpec(8), "adamw", 0)
            case LoadWeights():
                self.weights[command.weights] = self._engine.read(command.source)
            case DropRun():
                self._state(command.run)
                del self.runs[command.run]
            case DropWeights():
                self.weights.pop(command.weights, None)
            case Sample():
                return self._sample(command)
            case Cancel():
                self._cancel(command.target)
            case CheckLoss():
                if command.op.endswith(":666:check"):
                    raise Refused("user", "graph.nodes[0]: not allowed")
        return None

    def _forward_backward(self, command: ForwardBackward) -> ForwardBackwardResult:
        state, label = self._state(command.run), f"forward:{int(command.data[0].tokens[0])}"
        if command.loss_fn.endswith("_error"):
            kind: Any = command.loss_fn.removesuffix("_error")
            raise Refused(kind, f"told to fail on {label}")
        if command.loss_fn == "poison" or (
            command.loss_fn == "die" and label not in self._engine.died_of
        ):
            self._engine.died_of.add(label)
            raise _Deadly
        if not command.forward_only:
            state.append(label)
        outputs = tuple(
            {"logprobs": np.full(len(datum.tokens), -1.0, np.float32)} for datum in command.data
        )
        return ForwardBackwardResult(outputs, {"loss:sum": float(len(state))})

    def _take_in(self, run: str, state: list[str]) -> None:
        if run in self.runs or len(self.runs) >= self._engine.max_runs:
            raise Refused("user", f"run {run}: exists, or {len(self.runs)} runs are the limit")
        self.runs[run] = state
        self._engine.most_runs = max(self._engine.most_runs, len(self.runs))

    def _load(self, command: LoadRun) -> None:
        state = self._engine.read(command.source)
        if command.create:
            self._take_in(command.run, state)
        else:
            self._state(command.run)
            self.runs[command.run] = state

    def _save(self, command: SaveRun) -> SaveResult:
        state = self._state(command.run)
        if command.run in self._engine.unsavable:
            raise Refused("server", f"told not to save {command.run}")
        return _write(state, command.folder)

    def _sample(self, command: Sample) -> SampleResult:
        if command.weights and command.weights not in self.weights:
            raise Refused("server", f"weights {command.weights} are not loaded")
        if command.params.max_tokens == 666:
            raise Refused("user", "max_tokens is unlucky")
        if command.params.max_tokens == 999:
            self.held.append(command)
        size = len(self.weights.get(command.weights, []))
        tokens = np.array([size, len(command.prompt)], np.int32)
        sequence = Sampled(tokens, np.zeros(2, np.float32), "length")
        return SampleResult((sequence,) * command.num_samples)

    def _cancel(self, target: str) -> None:
        for sample in [sample for sample in self.held if sample.op == target]:
            self.held.remove(sample)
            self._events.put_nowait(Failed(target, "cancelled", "cancelled"))

    def _state(self, run: str) -> list[str]:
        if run not in self.runs:
            raise Refused("lost", f"run {run} is not in memory")
        return self.runs[run]


class Refused(Exception):
    """A command fails, of that kind."""

    def __init__(self, kind: Any, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Deadly(Exception):
    """The command kills the process."""


def _write(state: list[str], folder: str) -> SaveResult:
    (Path(folder) / "adapter_config.json").write_text("{}")
    (Path(folder) / "adapter_model.safetensors").write_text(json.dumps(state))
    return SaveResult(sum(entry.startswith("step") for entry in state), 100)


def read_folder(ref: WeightsRef) -> list[str]:
    """A run's state as it was saved, from where the folder lies."""
    path = Path(ref.path) / "adapter_model.safetensors"
    if not path.exists():
        raise Refused("server", f"{path.name} is missing")
    return read_state(path.read_bytes())


def read_state(content: bytes) -> list[str]:
    state: list[str] = json.loads(content)
    return state
