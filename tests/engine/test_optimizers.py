"""AdamW is torch's; Dimuon moves along orthonormal directions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from support.training import ADAM, adam_step, call, random_datum, train
from tinkex.engine.adapters.layout import AdapterLayout
from tinkex.engine.adapters.shares import Whole
from tinkex.engine.messages import CreateRun, LoraSpec, OptimStep
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.training.optimizers import AdamW, clip, orthogonalise
from tinkex.engine.training.trainer import Trainer


def test_adamw_equals_torch_over_fifty_steps(decoder: Decoder) -> None:
    layout = AdapterLayout(decoder.config, LoraSpec(4))
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(layout.size, generator=generator)
    own, theirs = start.clone(), torch.nn.Parameter(start.clone())
    mine = AdamW(layout, torch.device("cpu"))
    reference = torch.optim.AdamW(
        [theirs], lr=3e-3, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.1, foreach=False
    )
    params = ADAM | {"learning_rate": 3e-3, "weight_decay": 0.1}
    for step in range(1, 51):
        gradient = torch.randn(layout.size, generator=generator) * 10 ** (step % 5 - 2)
        theirs.grad = gradient.clone()
        torch.nn.utils.clip_grad_norm_([theirs], 50.0)
        reference.step()
        clip(Whole(), gradient, 50.0)
        mine.step(own, gradient, step, params)
    torch.testing.assert_close(own, theirs.detach(), rtol=2e-5, atol=2e-6)


def test_clipping_scales_to_the_limit_and_reports_the_norm_before() -> None:
    gradient = torch.full((4,), 3.0)
    assert clip(Whole(), gradient, 0.0) == pytest.approx(6.0)
    assert clip(Whole(), gradient, -1.0) == pytest.approx(6.0)
    assert clip(Whole(), gradient, 1.5) == pytest.approx(6.0)
    assert float(gradient.norm()) == pytest.approx(1.5)


@pytest.mark.parametrize("shape", [(3, 8, 40), (2, 40, 8), (1, 16, 16)])
def test_orthogonalise_finds_the_nearest_orthonormal_matrix(shape: tuple[int, int, int]) -> None:
    stack = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    u, _, v = torch.linalg.svd(stack, full_matrices=False)
    torch.testing.assert_close(orthogonalise(stack), u @ v, rtol=0, atol=5e-3)
    assert torch.equal(orthogonalise(torch.zeros(shape)), torch.zeros(shape))


@pytest.mark.parametrize("family", ["adamw", "dimuon"])
def test_both_families_learn_and_report_their_step(decoder: Decoder, family: str) -> None:
    trainer = Trainer(decoder)
    trainer.create_run(CreateRun("op", "run", LoraSpec(8, seed=0), family))
    datum = random_datum(np.random.default_rng(0), 24)
    datum.inputs["weights"][:] = 1.0
    params = (
        ADAM if family == "adamw" else {"learning_rate": 0.02, "beta1": 0.9, "grad_clip_norm": 0.0}
    )
    losses = []
    for step in range(1, 13):
        losses.append(train(trainer, call("run", datum))[0].metrics["loss:sum"])
        metrics = trainer.optim_step(OptimStep("op", "run", family, params)).metrics
        assert {name.partition("/")[0] for name in metrics} == {"optim"}, "nobody's own names"
        assert metrics["optim/step"] == step
        assert metrics["optim/grad_norm"] > 0
        assert math.isfinite(metrics["optim/update_norm"])
    assert losses[-1] < 0.5 * losses[0]


def test_a_step_with_nothing_gathered_has_a_zero_gradient(decoder: Decoder) -> None:
    trainer = Trainer(decoder)
    trainer.create_run(CreateRun("op", "run", LoraSpec(8, seed=0)))
    before = trainer._find("run").adapter.master.clone()
    assert trainer.optim_step(adam_step("run")).metrics["optim/grad_norm"] == 0.0
    assert torch.equal(trainer._find("run").adapter.master, before)
