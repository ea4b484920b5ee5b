"""Every loss and its gradient equal the plain formula in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from support.training import DEVICE, call, gradient, train
from tinkex.engine.errors import UserError
from tinkex.engine.messages import Datum
from tinkex.engine.training.trainer import Trainer

Formula = Callable[[Tensor, dict[str, Tensor]], Tensor]
RELATIVE = 2e-4 if DEVICE == "cpu" else 0.05


def clipped(ratio: Tensor, x: dict[str, Tensor], low: float, high: float) -> Tensor:
    a = x["advantages"]
    return -torch.minimum(ratio * a, ratio.clamp(low, high) * a).sum()


def ratio(lp: Tensor, x: dict[str, Tensor]) -> Tensor:
    return torch.exp(lp - x["logprobs"])


def gspo(lp: Tensor, x: dict[str, Tensor]) -> Tensor:
    mean = (lp - x["logprobs"])[x["sequence_ratio_mask"] != 0].mean().detach()
    return clipped(torch.exp(mean + lp - lp.detach()), x, 0.9, 1.05)


def stable(lp: Tensor, x: dict[str, Tensor]) -> Tensor:
    on = (x["advantages"] != 0).double()
    weight = ratio(lp, x).clamp(max=1.0).detach()
    pull = 0.15 * (on * (lp - x["logprobs"]) ** 2).sum()
    return pull - (weight * x["advantages"] * lp).sum()


def cispo(lp: Tensor, x: dict[str, Tensor]) -> Tensor:
    return -(ratio(lp, x).clamp(0.9, 1.1).detach() * lp * x["advantages"]).sum()


def dro(lp: Tensor, x: dict[str, Tensor]) -> Tensor:
    return -(lp * x["advantages"] - 0.5 * 0.2 * (lp - x["logprobs"]) ** 2).sum()


POLICY = ("logprobs", "advantages")
CASES: dict[str, tuple[tuple[str, ...], dict[str, float], Formula]] = {
    "cross_entropy": (("weights",), {}, lambda lp, x: -(lp * x["weights"]).sum()),
    "importance_sampling": (POLICY, {}, lambda lp, x: -(ratio(lp, x) * x["advantages"]).sum()),
    "ppo": (POLICY, {}, lambda lp, x: clipped(ratio(lp, x), x, 0.8, 1.2)),
    "cispo": (POLICY, {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}, cispo),
    "dro": (POLICY, {"beta": 0.2}, dro),
    "gspo": (
        (*POLICY, "sequence_ratio_mask"),
        {"clip_low_threshold": 0.9, "clip_high_threshold": 1.05},
        gspo,
    ),
    "stable_reinforce": (POLICY, {"kl_coeff": 0.3}, stable),
}


def policy_data(trainer: Trainer, lengths: tuple[int, ...] = (9, 30, 4)) -> list[Datum]:
    """Datums whose reference logprobs lie around the model's own, so that ratios straddle one."""
    rng = np.random.default_rng(5)
    found = []
    for n in lengths:
        tokens, targets = rng.integers(0, 128, n).astype(np.int32), rng.integers(0, 128, n)
        plain = Datum(tokens, {"target_tokens": targets, "weights": np.zeros(n, np.float32)})
        (seen,) = train(trainer, call("run", plain, forward_only=True))
        values = {
            "weights": rng.normal(size=n),
            "logprobs": seen.outputs[0]["logprobs"] + rng.normal(size=n) * 0.3,
            "advantages": rng.normal(size=n) * (rng.random(n) < 0.7),
            "sequence_ratio_mask": (rng.random(n) < 0.5) | (np.arange(n) == 0),
        }
        floats = {name: value.astype(np.float32) for name, value in values.items()}
        found.append(Datum(tokens, {"target_tokens": targets, **floats}))
    return found


def only(data: list[Datum], names: tuple[str, ...]) -> list[Datum]:
    keep = ("target_tokens", *names)
    return [replace(d, inputs={name: d.inputs[name] for name in keep}) for d in data]


@pytest.mark.parametrize("name", list(CASES))
def test_loss_and_gradient_equal_the_formula(trainer: Trainer, name: str) -> None:
    inputs, config, formula = CASES[name]
    data = only(policy_data(trainer), inputs)
    (result,) = train(trainer, call("run", *data, loss=name, loss_config=config))
    own = gradient(trainer, "run")

    loss, weighted = 0.0, []
    for datum, output in zip(data, result.outputs, strict=True):
        lp = torch.from_numpy(output["logprobs"]).double().requires_grad_()
        value = formula(
            lp, {k: torch.from_numpy(np.asarray(datum.inputs[k])).double() for k in inputs}
        )
        (slope,) = torch.autograd.grad(value, lp)
        loss += float(value.detach())
        weights = (-slope).float().numpy()
        weighted.append(replace(datum, inputs={"target_tokens": datum.inputs["target_tokens"],
                                               "weights": weights}))  # fmt: skip
    assert result.metrics["loss:sum"] == pytest.approx(loss, rel=1e-6)

    trainer._find("run").gradient = None
    train(trainer, call("run", *weighted))
    expected = gradient(trainer, "run")
    assert (own - expected).norm() <= RELATIVE * expected.norm()


def test_per_token_clip_bounds_and_weights_are_honoured(trainer: Trainer) -> None:
    data = policy_data(trainer, (30,))
    bounds = {
        "clip_low_threshold": np.full(30, 0.95, np.float32),
        "clip_high_threshold": np.full(30, 1.01, np.float32),
    }
    (datum,) = only(data, POLICY)
    tokens_say = replace(datum, inputs={**datum.inputs, **bounds})
    config = {"clip_low_threshold": 0.95, "clip_high_threshold": 1.01}
    by_token, by_config, plain, halved = (
        result.metrics["loss:sum"]
        for result in train(
            trainer,
            call("run", tokens_say, loss="ppo"),
            call("run", datum, loss="ppo", loss_config=config),
            call("run", datum, loss="ppo"),
            call(
                "run",
                replace(datum, inputs={**datum.inputs, "weights": np.full(30, 0.5, np.float32)}),
                loss="ppo",
            ),
        )
    )
    assert by_token == pytest.approx(by_config)
    assert by_token != pytest.approx(plain)
    assert halved == pytest.approx(plain / 2)


def test_gspo_without_a_mask_takes_the_tokens_with_an_advantage(trainer: Trainer) -> None:
    (datum,) = policy_data(trainer, (30,))
    mask = (np.asarray(datum.inputs["advantages"]) != 0).astype(np.float32)
    masked = replace(datum, inputs={**datum.inputs, "sequence_ratio_mask": mask})
    results = train(
        trainer,
        call("run", *only([datum], POLICY), loss="gspo"),
        call("run", *only([masked], (*POLICY, "sequence_ratio_mask")), loss="gspo"),
    )
    assert results[0].metrics["loss:sum"] == pytest.approx(results[1].metrics["loss:sum"])


@pytest.mark.parametrize(
    ("loss", "config", "message"),
    [
        ("ppo", {"clip": 0.2}, "'clip' is no setting of ppo"),
        ("ppo", {"clip_low_threshold": "low"}, "must be a finite number"),
        ("ppo", {"clip_low_threshold": 2.0}, "above clip_high_threshold"),
        ("cross_entropy", {"beta": 0.1}, "'beta' is no setting"),
        ("huber", {}, "loss_fn: 'huber' is not known"),
    ],
)
def test_unknown_losses_and_settings_are_refused_by_name(
    trainer: Trainer, loss: str, config: dict[str, float | str], message: str
) -> None:
    (datum,) = only(policy_data(trainer, (5,)), POLICY)
    with pytest.raises(UserError, match=message):
        train(trainer, call("run", datum, loss=loss, loss_config=config))
