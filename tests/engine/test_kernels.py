"""Training's Triton kernels compute what the torch operations they stand in for compute."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.training import ADAM

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

DTYPES = [torch.float32, torch.bfloat16]


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to("cuda", dtype)


def relative(found: Tensor, wanted: Tensor) -> float:
    found, wanted = found.detach(), wanted.detach()
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_an_adamw_step_is_the_one_of_the_cpu(decay: float) -> None:
    from tinkex.engine.adapters.layout import AdapterLayout
    from tinkex.engine.messages import LoraSpec
    from tinkex.engine.model.families import parse_config
    from tinkex.engine.training.optimizers import AdamW

    config = parse_config(
        {
            "model_type": "llama", "vocab_size": 131, "hidden_size": 40, "num_hidden_layers": 2,
            "intermediate_size": 56, "num_attention_heads": 4, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "rope_theta": 1e4,
            "tie_word_embeddings": False,
        }
    )  # fmt: skip
    layout = AdapterLayout(config, LoraSpec(3))
    start, params = random(layout.size).cpu(), ADAM | {"weight_decay": decay}
    own, other = start.cuda(), start.clone()
    here, there = (AdamW(layout, torch.device(name)) for name in ("cuda", "cpu"))
    for step in range(1, 8):
        gradient = random(layout.size, seed=step).cpu() * 10 ** (step % 5 - 2)
        moved = here.step(own, gradient.cuda(), step, params)
        assert moved == pytest.approx(there.step(other, gradient, step, params), rel=1e-5)
    torch.testing.assert_close(own.cpu(), other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("inner", "columns"), [(8, 300), (96, 40)])
def test_a_product_is_added_in_place(dtype: torch.dtype, inner: int, columns: int) -> None:
    from tinkex.engine.kernels import lora as lora_kernel

    wide, left = random(401, columns + 16, dtype=dtype, seed=1), random(401, inner, dtype=dtype)
    y, before = wide[:, 16:], wide.double()
    right = random(columns, inner, dtype=dtype, seed=2).mT
    lora_kernel.add_products(y, left, right, 0.5)
    wanted = before[:, 16:] + 0.5 * left.double() @ right.double()
    assert relative(y, wanted) < (1e-6 if dtype == torch.float32 else 3e-3)
    assert torch.equal(wide[:, :16].double(), before[:, :16])


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_become_their_own_gradient(dtype: torch.dtype) -> None:
    """Rows with no cell, one, and several, two of them for the same target."""
    from tinkex.engine.kernels import logprobs as head_kernel

    logits = random(4, 5003, dtype=dtype) * 3
    rows = torch.tensor([0, 2, 2, 2, 3], device="cuda")
    targets = torch.tensor([5002, 7, 4100, 7, 0], device="cuda")
    slope = random(5, seed=1)
    exact = logits.double().requires_grad_()
    (slope * exact.log_softmax(-1)[rows, targets]).sum().backward()
    norm = head_kernel.logsumexp(logits)
    torch.testing.assert_close(norm.double(), exact.detach().logsumexp(-1), rtol=1e-6, atol=1e-6)
    starts = torch.searchsorted(rows, torch.arange(5, device="cuda"))
    found = head_kernel.logit_gradient_(logits, norm, starts, targets, slope)
    assert exact.grad is not None
    assert relative(found, exact.grad) < (1e-5 if dtype == torch.float32 else 3e-3)


@pytest.mark.parametrize("window", [None, 16])
def test_attention_over_a_pack_is_the_one_of_the_cpu(window: int | None) -> None:
    from tinkex.engine.training.attention import PackedAttention

    lengths = [5, 33, 70]
    shapes = [(108, heads, 64) for heads in (4, 2, 2)]
    here = [random(*shape, dtype=torch.bfloat16, seed=i) for i, shape in enumerate(shapes)]
    there = [x.float().cpu().requires_grad_() for x in here]
    here = [x.requires_grad_() for x in here]
    slope = random(*shapes[0], dtype=torch.bfloat16, seed=9)
    found = PackedAttention(lengths, [window], torch.device("cuda"))(0, *here)
    wanted = PackedAttention(lengths, [window], torch.device("cpu"))(0, *there)
    found.backward(slope)
    wanted.backward(slope.float().cpu())
    assert relative(found.cpu(), wanted.double()) < 1e-2
    for one, other in zip(here, there, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert relative(one.grad.cpu(), other.grad.double()) < 2e-2
