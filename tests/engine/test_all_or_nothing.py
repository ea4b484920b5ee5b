"""A command that fails changes no bit of its run, and none of the runs beside it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.training import ADAM, adam_step, call, random_datum, save_run, train
from tinkex.engine.errors import UserError
from tinkex.engine.messages import CreateRun, LoadRun, LoraSpec, OptimStep, WeightsRef
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.training.optimizers import Bounds
from tinkex.engine.training.run import LARGEST_GRADIENT
from tinkex.engine.training.trainer import Trainer

DIMUON = {"learning_rate": 1e-2, "beta1": 0.9, "grad_clip_norm": 0.0}
DATUM = random_datum(np.random.default_rng(0), 24)


def _trainer(decoder: Decoder, *runs: str, family: str = "adamw") -> Trainer:
    trainer = Trainer(decoder)
    for run in runs:
        trainer.create_run(CreateRun("op", run, LoraSpec(4, seed=1), family))
    return trainer


def _step(run: str, family: str, **changed: float) -> OptimStep:
    return OptimStep("op", run, family, (ADAM if family == "adamw" else DIMUON) | changed)


def _state(trainer: Trainer, name: str) -> dict[str, Any]:
    """Everything a run is, copied."""
    run = trainer._find(name)
    tensors = {"weights": run.adapter.master, "working": run.adapter.working}
    tensors |= run.optimizer.tensors | {"gradient": run.gradient}
    copies = {key: None if one is None else one.clone() for key, one in tensors.items()}
    return copies | {"step": run.step}


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[key], other[key]) if torch.is_tensor(one[key]) else one[key] == other[key]
        for key in one
    )


@pytest.mark.parametrize(
    ("family", "changed", "named"),
    [
        ("adamw", {"learning_rate": 1e38}, "learning_rate=1e+38"),
        ("adamw", {"learning_rate": 1e300}, "learning_rate=1e+300"),
        ("adamw", {"learning_rate": 1.0, "weight_decay": 1e39}, "weight_decay=1e+39"),
        ("adamw", {"eps": 0.0}, "eps must be at least"),
        ("adamw", {"eps": 1e-46}, "eps must be at least"),
        ("adamw", {"learning_rate": math.inf}, "learning_rate must be"),
        ("dimuon", {"learning_rate": 1e39}, "learning_rate=1e+39"),
    ],
)
def test_a_failed_optim_step_changes_no_bit_and_names_the_field(
    decoder: Decoder, family: str, changed: dict[str, float], named: str
) -> None:
    trainer, twin = (_trainer(decoder, "run", family=family) for _ in range(2))
    for each in (trainer, twin):
        for _ in range(2):
            train(each, call("run", DATUM))
            each.optim_step(_step("run", family, grad_clip_norm=0.1))
        train(each, call("run", random_datum(np.random.default_rng(1), 16)))
    before = _state(trainer, "run")
    with pytest.raises(UserError, match=named.replace("+", r"\+")):
        trainer.optim_step(_step("run", family, grad_clip_norm=0.1, **changed))
    assert _same(_state(trainer, "run"), before)
    for each in (trainer, twin):
        each.optim_step(_step("run", family))
    assert _same(_state(trainer, "run"), _state(twin, "run"))


@pytest.mark.parametrize("family", ["adamw", "dimuon"])
def test_a_step_made_on_copies_has_the_same_bits(decoder: Decoder, family: str) -> None:
    plain, careful = (_trainer(decoder, "run", family=family) for _ in range(2))
    for _ in range(3):
        for each in (plain, careful):
            train(each, call("run", DATUM))
        careful._find("run").bounds = Bounds(math.inf, math.inf)
        assert plain.optim_step(_step("run", family)) == careful.optim_step(_step("run", family))
    assert _same(_state(plain, "run"), _state(careful, "run"))


def test_ordinary_steps_are_vouched_for_and_made_in_place(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinkex.engine.training.stepping._try_on_copies", pytest.fail)
    trainer = _trainer(decoder, "run")
    for rate in (0.0, 1e-5, 1e-3, 1.0, 100.0):
        train(trainer, call("run", DATUM))
        trainer.optim_step(adam_step("run", learning_rate=rate, weight_decay=0.1))


def test_bounds_hold_what_they_promise(decoder: Decoder) -> None:
    trainer = _trainer(decoder, "run")
    for number in range(6):
        train(trainer, call("run", random_datum(np.random.default_rng(number), 24)))
        trainer.optim_step(adam_step("run", learning_rate=10.0 ** (number - 3)))
        run = trainer._find("run")
        assert run.bounds is not None
        assert float(run.adapter.master.abs().max()) <= run.bounds.weights
        assert float(run.optimizer.tensors["mean"].abs().max()) <= run.bounds.mean


def test_a_gradient_too_large_to_add_fails_alone_in_its_batch(decoder: Decoder) -> None:
    trainer, alone = _trainer(decoder, "full", "other"), _trainer(decoder, "other")
    train(trainer, call("full", DATUM))
    trainer._find("full").gathered = LARGEST_GRADIENT
    before = _state(trainer, "full")
    first, second = trainer.forward_backward([call("full", DATUM), call("other", DATUM)])
    assert isinstance(first, UserError)
    assert "nothing was added" in str(first)
    assert not isinstance(second, Exception)
    assert _same(_state(trainer, "full"), before)
    train(alone, call("other", DATUM))
    assert _same(_state(trainer, "other"), _state(alone, "other"))


@pytest.mark.parametrize("optimizer", [True, False])
def test_a_load_that_fails_changes_no_bit(
    decoder: Decoder, tmp_path: Path, optimizer: bool
) -> None:
    trainer = _trainer(decoder, "run")
    trainer.create_run(CreateRun("op", "wider", LoraSpec(8, seed=1)))
    train(trainer, call("run", DATUM))
    save_run(trainer, "wider", tmp_path, training=True)
    before = _state(trainer, "run")
    with pytest.raises(UserError, match="rank 8"):
        trainer.load_run(LoadRun("op", "run", WeightsRef(str(tmp_path)), optimizer))
    assert _same(_state(trainer, "run"), before)


def test_a_run_that_cannot_be_made_from_a_checkpoint_is_not_there(
    decoder: Decoder, tmp_path: Path
) -> None:
    trainer = _trainer(decoder, "run")
    save_run(trainer, "run", tmp_path, training=False)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError):
        trainer.load_run(
            LoadRun("op", "new", WeightsRef(str(tmp_path)), False, create=True, family="dimuon")
        )
    assert trainer.runs == 1
