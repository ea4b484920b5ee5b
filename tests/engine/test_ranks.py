"""An engine of several ranks computes what one does, and answers like one.

Ranks are real processes over gloo. Sums of shares round otherwise than one long sum does; what
follows from that is bounded here.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from support.hf_models import make_reference, save_reference
from support.losses import LOGPROBS, graph, loss_of, method
from support.training import ADAM, random_datum
from tinkex.engine.collectives import Ranks
from tinkex.engine.errors import ModelError
from tinkex.engine.messages import (
    Command,
    CreateRun,
    Datum,
    Done,
    Event,
    Failed,
    ForwardBackward,
    LoadRun,
    LoadWeights,
    LoraSpec,
    OptimStep,
    Sample,
    SamplingParams,
    SaveRun,
    ServeRun,
    WeightsRef,
)
from tinkex.engine.model.families import parse_config
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.process.building import build_worker
from tinkex.engine.process.parent import RemoteWorker, WorkerDied
from tinkex.engine.settings import WorkerConfig
from tinkex.engine.training.packing import SOLO_TOKENS

FRESH, LATER, STATE = 2e-5, 5e-4, 5e-3
"""How far logprobs may be apart before the first step and after two of them, which carry rounding
further; and weights and moments relative to their largest."""

STEP = ADAM | {"eps": 1e-2}
"""An `eps` of the gradients' own size: else Adam makes whole steps of what is mere rounding."""

SHAPES = {
    "dense, four ranks": ("llama-four-heads", 4, False),
    "hybrid with experts": ("qwen3.5-moe", 2, False),
    "gpt-oss": ("gpt-oss", 2, False),
    "gpt-oss, whole experts": ("gpt-oss", 2, True),
    "whole experts, four ranks": ("qwen3-moe-four-heads", 4, True),
}
"""Family, ranks, and whether those have whole experts."""


class Local:
    """The same face for a worker in this thread as `RemoteWorker` has."""

    def __init__(self, config: WorkerConfig) -> None:
        self._events: list[Event] = []
        self._worker = build_worker(config, self._events.append)

    def send(self, command: Command) -> None:
        self._worker.submit(command)

    def receive(self) -> Event:
        while not self._events:
            self._worker.turn()
        return self._events.pop(0)

    def close(self) -> None:
        self._worker.stop()
        self._worker.run()


class Engine:
    """Asks one command at a time."""

    def __init__(self, folder: Path, ranks: int, *, whole_experts: bool = False) -> None:
        config = WorkerConfig(
            str(folder), device="cpu", kv_bytes=8 << 20, ranks=ranks, whole_experts=whole_experts
        )
        self.worker = Local(config) if ranks == 1 else RemoteWorker(config)
        self.facts = self.worker.receive()

    def ask(self, command: Any) -> Any:
        self.worker.send(command)
        while True:
            event = self.worker.receive()
            if isinstance(event, Failed):
                raise RuntimeError(event.message)
            if isinstance(event, Done) and event.op == command.op:
                return event.result

    def ask_all(self, *commands: Any) -> list[Any]:
        """All at once."""
        for command in commands:
            self.worker.send(command)
        found: dict[str, Any] = {}
        while len(found) < len(commands):
            event = self.worker.receive()
            assert not isinstance(event, Failed), event
            if isinstance(event, Done):
                found[event.op] = event.result
        return [found[command.op] for command in commands]


@contextmanager
def engine(folder: Path, ranks: int, *, whole_experts: bool = False) -> Iterator[Engine]:
    made = Engine(folder, ranks, whole_experts=whole_experts)
    try:
        yield made
    finally:
        made.worker.close()


def work(one: Engine, home: Path) -> dict[str, Any]:
    """A bit of everything, with what came of it."""
    rng, found = np.random.default_rng(5), dict[str, Any]()
    one.ask(CreateRun("create", "run", LoraSpec(4, seed=3)))
    for step in range(2):
        data = tuple(random_datum(rng, length) for length in (1, 17, 40))
        result = one.ask(ForwardBackward("pass", "run", data, "cross_entropy"))
        found[f"logprobs {step}"] = np.concatenate(
            [output["logprobs"] for output in result.outputs]
        )
        found[f"step {step}"] = one.ask(OptimStep("step", "run", "adamw", STEP)).metrics
    one.ask(ForwardBackward("gathered", "run", data, "cross_entropy"))
    home.mkdir()
    one.ask(SaveRun("save", "run", str(home), training=True))
    one.ask(ServeRun("serve", "run", "live", str(home)))
    one.ask(LoadWeights("load", "stored", WeightsRef(str(home))))
    prompt = rng.integers(0, 128, 21).astype(np.int32)
    params = SamplingParams(max_tokens=6, seed=1, stop=(), temperature=0.3)
    for weights in ("live", "stored"):
        sampled = one.ask(Sample("sample", weights, prompt, params, prompt_logprobs=True))
        found[f"tokens {weights}"] = sampled.sequences[0].tokens.tolist()
        found[f"scores {weights}"] = sampled.prompt_logprobs[1:]
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.mark.parametrize("name", SHAPES)
def test_ranks_train_save_and_sample_what_one_device_does(name: str, folders: Path) -> None:
    family, ranks, whole_experts = SHAPES[name]
    here = folders / name
    model, one, other = here / "model", here / "one", here / "several"
    save_reference(family, model)
    with engine(model, 1) as alone:
        wanted = work(alone, one)
        parameters = alone.facts.parameters
    with engine(model, ranks, whole_experts=whole_experts) as several:
        found = work(several, other)
        assert several.facts.parameters == parameters
        _resumes(several, one, here / "copy")
        _keeps_guarantees(several, here / "kept")
        _evaluates_custom_losses(several)
        _ends_with_any_rank(several)
    for key, value in wanted.items():
        if key.startswith("tokens"):
            assert found[key] == value, key
        elif key.startswith("step"):
            assert found[key] == pytest.approx(value, rel=2e-3), key
        else:
            assert np.abs(found[key] - value).max() <= (FRESH if key == "logprobs 0" else LATER), (
                key
            )
    _same_files(one, other)


def _resumes(several: Engine, source: Path, copy: Path) -> None:
    """From what one device has saved, bit for bit."""
    several.ask(LoadRun("load", "again", WeightsRef(str(source)), optimizer=True, create=True))
    copy.mkdir()
    several.ask(SaveRun("save", "again", str(copy), training=True))
    for file in ("adapter_model.safetensors", "training.safetensors"):
        before, after = load_file(source / file), load_file(copy / file)
        assert all(np.array_equal(before[name], after[name]) for name in before)


def _keeps_guarantees(several: Engine, home: Path) -> None:
    """Bit for bit: a call split into parts, in company, repeated in another run, and after a run
    was saved and loaded is the same call. A run rebuilt after a death is the last two."""
    rng = np.random.default_rng(6)
    lengths = (SOLO_TOKENS, 33, 18)  # shorter parts have this promise of no processor
    data = tuple(random_datum(rng, length) for length in lengths)
    for name in ("alone", "twin", "parts", "stranger"):
        seed = 4 if name == "stranger" else 3
        several.ask(CreateRun("create", name, LoraSpec(4, seed=seed)))
    whole = _logprobs(several.ask(ForwardBackward("whole", "alone", data, "cross_entropy")))
    parts = [ForwardBackward("part", "parts", (one,), "cross_entropy") for one in data]
    assert [*map(_logprobs, map(several.ask, parts))] == [[each] for each in whole]
    company, _ = several.ask_all(
        ForwardBackward("company", "twin", data, "cross_entropy"),
        ForwardBackward("other", "stranger", data[::-1], "cross_entropy"),
    )
    assert _logprobs(company) == whole
    steps = [several.ask(OptimStep("step", name, "adamw", STEP)) for name in ("alone", "twin")]
    assert steps[0].metrics == steps[1].metrics
    home.mkdir()
    several.ask(SaveRun("save", "alone", str(home), training=True))
    several.ask(LoadRun("load", "later", WeightsRef(str(home)), optimizer=True, create=True))
    results = [
        several.ask(ForwardBackward("on", name, data, "cross_entropy"))
        for name in ("twin", "later")
    ]
    assert _logprobs(results[0]) == _logprobs(results[1])
    steps = [several.ask(OptimStep("step", name, "adamw", STEP)) for name in ("twin", "later")]
    assert steps[0].metrics == steps[1].metrics


def _logprobs(result: Any) -> list[list[float]]:
    return [output["logprobs"].tolist() for output in result.outputs]


def _same_files(one: Path, other: Path) -> None:
    assert json.loads((one / "run.json").read_text()) == json.loads(
        (other / "run.json").read_text()
    )
    for file in ("adapter_model.safetensors", "training.safetensors"):
        wanted, found = load_file(one / file), load_file(other / file)
        assert wanted.keys() == found.keys()
        for name, tensor in wanted.items():
            assert found[name].shape == tensor.shape
            assert np.abs(found[name] - tensor).max() <= STATE * np.abs(tensor).max() + 1e-6, name


def _evaluates_custom_losses(several: Engine) -> None:
    """Beside every rank; all wait for one, or none does."""
    loss = loss_of(graph(method("sum", LOGPROBS)))
    several.ask(CreateRun("create", "own", LoraSpec(4, seed=3)))
    targets = np.arange(9, dtype=np.int64)
    data = (Datum(np.arange(9, dtype=np.int32), {"target_tokens": targets}),)
    for op in ("first", "second"):
        result = several.ask(ForwardBackward(op, "own", data, "custom", custom=loss))
        assert np.isfinite(result.metrics["loss:sum"])


def _ends_with_any_rank(several: Engine) -> None:
    """So that the server starts all of them again."""
    assert isinstance(several.worker, RemoteWorker)
    os.kill(_children(several.worker.pid)[-1], signal.SIGKILL)
    with pytest.raises(WorkerDied):
        _create_runs_for_ever(several)


def _create_runs_for_ever(several: Engine) -> None:
    for number in itertools.count():
        several.ask(CreateRun("create", f"run {number}", LoraSpec(4)))


def _children(pid: int) -> list[int]:
    """The ranks that a leader has started."""
    lines = subprocess.run(
        ["ps", "--ppid", str(pid), "-o", "pid=,args="], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [int(line.split()[0]) for line in lines if "engine.process.ranks" in line]


def test_fused_matrices_are_divided_part_by_part(folders: Path) -> None:
    """Phi stores queries, keys and values as one tensor; each rank gets a share of all three."""
    save_reference("phi3", folders / "phi3")
    whole = load_decoder(folders / "phi3").weights.layers[0]
    shares = [load_decoder(folders / "phi3", ranks=Ranks(r, 2)).weights.layers[0] for r in (0, 1)]
    sizes = whole.mixer.config.qkv_sizes
    for part, of_ranks in zip(
        whole.mixer.qkv.split(sizes),
        zip(*(s.mixer.qkv.split(s.mixer.config.qkv_sizes) for s in shares), strict=True),
        strict=True,
    ):
        assert torch.equal(part, torch.cat(of_ranks))
    gates = [share.mlp.gate_up.chunk(2) for share in shares]
    assert torch.equal(
        whole.mlp.gate_up, torch.cat([torch.cat(g) for g in zip(*gates, strict=True)])
    )


@pytest.mark.parametrize(
    ("family", "ranks", "said"),
    [
        ("llama", 3, "num_attention_heads is 4, which 3 ranks cannot divide"),
        ("olmo3", 2, "norms queries and keys over all heads at once"),
        ("llama", 2, "whole_experts: this model has no experts"),
        ("qwen3-moe-mixed", 2, "the number of experts is 33, which 2 ranks cannot divide"),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(family: str, ranks: int, said: str) -> None:
    config = parse_config(make_reference(family).config.to_dict())
    with pytest.raises(ModelError, match=said):
        config.share(0, ranks, whole_experts="experts" in said)
