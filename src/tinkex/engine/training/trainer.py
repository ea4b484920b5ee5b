"""The runs of one engine and what commands do to them. The worker drives it; it owns no thread.

A command that raises has changed nothing. The same commands in the same order give the same
numbers again, on one machine and one build of torch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from weakref import WeakSet

from tinkex.engine.adapters.layout import (
    Adapter,
    AdapterLayout,
    AdapterWeights,
    initial_weights,
    seed_of,
)
from tinkex.engine.cpu.threads import threads, threads_for
from tinkex.engine.errors import EngineError, UnknownRun, UserError
from tinkex.engine.limits import Limits
from tinkex.engine.losses.custom.evaluation import CustomEvaluation
from tinkex.engine.losses.custom.evaluator import Evaluator, evaluator
from tinkex.engine.losses.custom.graph import Graph
from tinkex.engine.losses.evaluation import BuiltinEvaluation, Evaluation
from tinkex.engine.losses.inputs import Bounds, check_data
from tinkex.engine.losses.registry import find_loss, read_config
from tinkex.engine.messages import (
    CheckLoss,
    CreateRun,
    CustomLoss,
    DropRun,
    ForwardBackward,
    LoadRun,
    LoraSpec,
    OptimStep,
    OptimStepResult,
    RunInfo,
)
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.pieces import Pieces, at_once
from tinkex.engine.training.batch import Batch, Call, Deferred, Ending, Outcome
from tinkex.engine.training.host_memory import HostMemory
from tinkex.engine.training.optimizers import check_family, check_params, make_optimizer
from tinkex.engine.training.passes import Passes
from tinkex.engine.training.replay import check_routes
from tinkex.engine.training.residency import Residency
from tinkex.engine.training.run import (
    Run,
    Snapshot,
    read_info,
    restore,
    take_snapshot,
)
from tinkex.engine.training.stepping import step

GRAPHS_REMEMBERED = 256
"""Checked graphs of custom losses, so that a loss is not parsed again for every call."""


class Trainer:
    """Fine-tunes many runs on one frozen decoder."""

    def __init__(
        self, decoder: Decoder, limits: Limits | None = None, losses: Evaluator | None = None
    ) -> None:
        self.decoder = decoder
        self.limits = limits or Limits()
        self._custom = losses or evaluator()
        # Calls live as long as a batch or a deferral holds them.
        self._calls: WeakSet[Call] = WeakSet()
        host = HostMemory(decoder.device, self.limits.host_run_bytes)
        self.residency = Residency(host, decoder.dtype, self.limits.run_bytes, self._in_use)
        self._graphs: OrderedDict[bytes, Graph] = OrderedDict()
        config = decoder.config
        self._bounds = Bounds(config.vocab_size, config.max_context, self.limits)
        self._passes = Passes(decoder, self.limits)

    @property
    def runs(self) -> int:
        return len(self.residency)

    @property
    def nbytes(self) -> int:
        """Memory of the runs on the device: weights, optimizer state and accumulated gradients."""
        return self.residency.nbytes

    def prepare(self) -> bool:
        """Prepare a piece of what first calls need; False if nothing is left."""
        return self.residency.prepare() or self._passes.prepare()

    def compile_more(self) -> bool:
        """Prepare a piece of what is needed less often; False if nothing is left."""
        return self._passes.compile_more()

    # ---- runs

    def create_run(self, command: CreateRun) -> RunInfo:
        return at_once(self.creating(command))

    def creating(self, command: CreateRun) -> Pieces[RunInfo]:
        self._refuse_taken(command.run)
        run = yield from self._make(command.run, command.lora, command.optimizer)
        self.residency.add(command.run, run)
        return run.info

    def drop_run(self, command: DropRun) -> None:
        self._refuse_unknown(command.run)
        self.residency.drop(command.run)

    def weights(self, run: str) -> AdapterWeights:
        """A frozen copy of a run's current weights."""
        return self._find(run).adapter.weights()

    # ---- training

    def begin(self, commands: Sequence[ForwardBackward | Deferred]) -> Batch:
        """One packed batch, to be run micro-batch by micro-batch. Nothing has run yet. Until it is
        exhausted its runs must get no other command. The same holds for runs of calls that left it
        `Deferred`, until these came back and were finished."""
        calls = [self._in_use_from_now(self._call(command)) for command in commands]
        return Batch(self._passes, self.limits, calls)

    def forward_backward(self, commands: Sequence[ForwardBackward]) -> list[Outcome]:
        """The whole batch at once: a result or an error for each command, in order."""
        return [self._finished(ending) for ending in self._exhaust(commands)]

    def _finished(self, ending: Ending) -> Outcome:
        while isinstance(ending, Deferred):
            ending.wait()
            (ending,) = self._exhaust([ending])
        return ending

    def _exhaust(self, commands: Sequence[ForwardBackward | Deferred]) -> list[Ending]:
        batch = self.begin(commands)
        for _ in batch:
            pass
        return batch.outcomes

    def optim_step(self, command: OptimStep) -> OptimStepResult:
        """Apply and clear the accumulated gradient; without one it is zero."""
        run = self._find(command.run)
        if command.optimizer != run.optimizer.name:
            raise UserError(
                f"optim_params: this run's optimizer is {run.optimizer.name}, not "
                f"{command.optimizer}; send the parameters of {run.optimizer.name}"
            )
        check_params(command.optimizer, command.params)
        with threads(threads_for(self.decoder.parameters, 0)):
            norm, moved = step(run, command.params)
        # Programs merge these into logs of their own, where the plain names are taken.
        metrics = {
            "optim/grad_norm": norm,
            "optim/update_norm": moved,
            "optim/step": float(run.step),
        }
        return OptimStepResult(metrics)

    def check_loss(self, command: CheckLoss) -> None:
        """Raises `UserError` for a custom loss that cannot be used."""
        self._graph(command.loss)
        self._custom.get_ready()

    # ---- state

    def snapshot(self, run: str, training: bool) -> Snapshot:
        """A copy of the run as it is now; `write_snapshot` may write it from any thread."""
        return take_snapshot(self._find(run), training)

    def load_run(self, command: LoadRun) -> RunInfo:
        return at_once(self.loading(command))

    def loading(self, command: LoadRun) -> Pieces[RunInfo]:
        if command.create:
            self._refuse_taken(command.run)
            info = read_info(command.source.path)
            run = yield from self._make(command.run, info.lora, command.family or info.optimizer)
        else:
            run = self._find(command.run)
        yield from restore(run, command.source.path, command.optimizer)
        self.residency.add(command.run, run)
        return run.info

    # ---- inside

    def _find(self, name: str) -> Run:
        self._refuse_unknown(name)
        return self.residency.get(name)

    def _refuse_unknown(self, name: str) -> None:
        if name not in self.residency:
            raise UnknownRun(f"run: {name!r} is not known to this engine; create or load it first")

    def _in_use_from_now(self, call: Call | EngineError) -> Call | EngineError:
        """Keep its run on the device while other runs of the batch are brought to it."""
        if isinstance(call, Call):
            self._calls.add(call)
        return call

    def _in_use(self) -> set[Run]:
        return {call.run for call in self._calls}

    def _refuse_taken(self, name: str) -> None:
        if name in self.residency:
            raise UserError(f"run: {name!r} exists already")
        if len(self.residency) >= self.limits.max_runs:
            raise UserError(f"run: this engine holds {self.limits.max_runs} runs, its limit")

    def _make(self, name: str, spec: LoraSpec, optimizer: str) -> Pieces[Run]:
        if not 1 <= spec.rank <= self.limits.max_rank:
            raise UserError(
                f"lora: rank {spec.rank} is outside what this engine takes, "
                f"1 to {self.limits.max_rank}"
            )
        check_family(optimizer)
        layout, device = AdapterLayout(self.decoder.config, spec), self.decoder.device
        yield from self.residency.make_room(layout, optimizer)
        seed = seed_of(name) if spec.seed is None else spec.seed
        master = yield from initial_weights(layout, seed, device)
        adapter = Adapter(layout, master, self.decoder.dtype)
        return Run(adapter, make_optimizer(optimizer, layout, device))

    def _call(self, command: ForwardBackward | Deferred) -> Call | EngineError:
        if isinstance(command, Deferred):
            return command.call.afresh()
        try:
            return self._check(command)
        except EngineError as error:
            return error

    def _check(self, command: ForwardBackward) -> Call:
        run = self._find(command.run)
        loss = self._evaluation(command)
        data = check_data(command.data, loss.wanted, self._bounds.within(command.context))
        check_routes(data, self.decoder.config)
        loss.begin(data)
        return Call(run, data, loss, command.forward_only)

    def _evaluation(self, command: ForwardBackward) -> Evaluation:
        if command.loss_fn != "custom":
            loss = find_loss(command.loss_fn)
            return BuiltinEvaluation(loss, read_config(loss, command.loss_config))
        if command.custom is None:
            raise UserError("loss_fn: a custom loss was named and none was given")
        return CustomEvaluation(command.custom, self._graph(command.custom), self._custom)

    def _graph(self, loss: CustomLoss) -> Graph:
        """The checked graph of a loss; the most recent ones are remembered."""
        graph = self._graphs.pop(loss.digest, None)
        if graph is None:
            graph = Graph(loss.inputs, loss.nodes, self.limits.max_loss_nodes)
        self._graphs[loss.digest] = graph
        if len(self._graphs) > GRAPHS_REMEMBERED:
            self._graphs.popitem(last=False)
        return graph
