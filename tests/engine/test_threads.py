"""Numbers do not depend on how many threads compute them, nor on the rows beside them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.sampling import tiny_decoder
from support.training import call, gradient, random_datum, train
from tinkex.engine.messages import CreateRun, LoraSpec
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.threads import logsumexp, threads, threads_for
from tinkex.engine.trainer import Trainer


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


def test_little_work_gets_one_thread_and_much_gets_all() -> None:
    with threads(2):
        assert threads_for(parameters=800_000, tokens=100) == 1
        assert threads_for(parameters=800_000, tokens=1000) == 2
        assert threads_for(parameters=135_000_000, tokens=1) == 2


@pytest.mark.parametrize("model", ["tinkex/tiny-llama", "tinkex/tiny-qwen3"])
@pytest.mark.parametrize("lengths", [(3,), (8, 24, 40, 64), (600,)])
def test_a_call_among_others_on_two_threads_has_the_bits_it_has_alone_on_one(
    model: str, lengths: tuple[int, ...]
) -> None:
    decoder = tiny_decoder(model)
    alone = _gradient(decoder, lengths, company=0)
    with threads(2):
        assert threads_for(decoder.parameters, sum(lengths) + 600) == 2
        assert torch.equal(_gradient(decoder, lengths, company=600), alone)


def _gradient(decoder: Decoder, lengths: tuple[int, ...], company: int) -> torch.Tensor:
    """Of a call with these lengths, in a batch with another run's so many tokens."""
    rng = np.random.default_rng(0)
    trainer = Trainer(decoder)
    calls = [call("a", *(random_datum(rng, length) for length in lengths))]
    trainer.create_run(CreateRun("op", "a", LoraSpec(16, seed=1)))
    if company:
        trainer.create_run(CreateRun("op", "b", LoraSpec(8, seed=2)))
        calls.append(call("b", random_datum(rng, company)))
    train(trainer, *calls)
    return gradient(trainer, "a")
