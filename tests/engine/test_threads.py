"""Numbers do not depend on how many threads compute them, nor on the rows beside them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.sampling import tiny_folder
from support.training import call, gradient, random_datum, train
from tinkex.engine.cpu.threads import logsumexp, threads, threads_for
from tinkex.engine.messages import CreateRun, LoraSpec
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.model.ops import swiglu
from tinkex.engine.training import batch
from tinkex.engine.training.run import Run
from tinkex.engine.training.trainer import Trainer


def test_a_row_has_the_same_logsumexp_alone_and_among_others() -> None:
    generator = torch.Generator().manual_seed(0)
    with threads(2):
        for _ in range(100):
            rows = torch.randn(3, 49_152, generator=generator) * 5
            assert torch.equal(logsumexp(rows[:1]), logsumexp(rows)[:1])


def test_the_number_of_threads_is_what_it_was_afterwards() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_little_work_gets_one_thread_and_a_large_model_all() -> None:
    with threads(5):
        assert threads_for(parameters=800_000, tokens=100) == 1
        assert threads_for(parameters=800_000, tokens=1000) == 2
        assert threads_for(parameters=135_000_000, tokens=1) == 5


@pytest.mark.parametrize("count", [2, 3, 5, 9, 16])
@pytest.mark.parametrize("width", [384, 1536, 100])
def test_gated_units_of_a_row_do_not_depend_on_other_rows(count: int, width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(900, 2 * width, generator=generator)
    slope = torch.randn(900, width, generator=generator)

    def both(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        part = x[:rows].clone().requires_grad_()
        out = swiglu(part)
        (gradient,) = torch.autograd.grad(out, part, slope[:rows])
        return out.detach(), gradient

    with threads(count):
        out, gradient = both(900)
        for rows in (1, 3, 17, 136, 500, 737):
            own, own_gradient = both(rows)
            assert torch.equal(own, out[:rows])
            assert torch.equal(own_gradient, gradient[:rows])


@pytest.mark.parametrize("model", ["tinkex/tiny-llama", "tinkex/tiny-qwen3"])
@pytest.mark.parametrize("lengths", [(3,), (8, 24, 40, 64), (600,)])
def test_a_call_among_others_on_two_threads_has_the_bits_it_has_alone_on_one(
    model: str, lengths: tuple[int, ...]
) -> None:
    decoder = load_decoder(tiny_folder(model))
    alone = _gradient(decoder, lengths, others=0)
    with threads(2):
        assert threads_for(decoder.parameters, sum(lengths) + 600) == 2
        assert torch.equal(_gradient(decoder, lengths, others=600), alone)


@pytest.mark.parametrize("count", [3, 5, 16])
@pytest.mark.parametrize("lengths", [(3,), (17,), (8, 24, 40, 64), (600,)])
def test_a_call_among_others_on_many_threads_has_the_bits_it_has_alone_on_as_many(
    lengths: tuple[int, ...], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "threads_for", lambda *_: count)
    decoder = load_decoder(tiny_folder("tinkex/tiny-llama"))
    alone = _gradient(decoder, lengths, others=0)
    for first in (False, True):
        assert torch.equal(_gradient(decoder, lengths, others=600, first=first), alone)


def test_a_small_call_is_added_to_what_its_run_has_gathered_with_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = []
    gather = Run.gather

    def watched(run: Run, gradient: torch.Tensor, norm: float) -> None:
        used.append(torch.get_num_threads())
        gather(run, gradient, norm)

    monkeypatch.setattr(Run, "gather", watched)
    with threads(2):
        _gradient(load_decoder(tiny_folder("tinkex/tiny-llama")), (31,), others=0)
    assert used == [1]


def _gradient(
    decoder: Decoder, lengths: tuple[int, ...], others: int, first: bool = False
) -> torch.Tensor:
    """Of a call with these lengths, batched with so many tokens of another run, or those first."""
    rng = np.random.default_rng(0)
    trainer = Trainer(decoder)
    calls = [call("a", *(random_datum(rng, length) for length in lengths))]
    trainer.create_run(CreateRun("op", "a", LoraSpec(16, seed=1)))
    if others:
        trainer.create_run(CreateRun("op", "b", LoraSpec(8, seed=2)))
        calls.append(call("b", random_datum(rng, others)))
    train(trainer, *(reversed(calls) if first else calls))
    return gradient(trainer, "a")
