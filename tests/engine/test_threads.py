"""Numbers do not depend on how many threads compute them, nor on the rows beside them."""

from __future__ import annotations

import torch

from tinkex.engine.model.threads import logsumexp, threads


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
