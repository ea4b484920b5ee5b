"""Warming up uses every path once and leaves nothing behind."""

from __future__ import annotations

from support.sampling import make_sampler
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.trainer import Trainer
from tinkex.engine.warmup import warm_up


def test_warming_up_leaves_no_run_and_no_request_behind(decoder: Decoder) -> None:
    trainer, sampler = Trainer(decoder), make_sampler(decoder)
    warm_up(trainer, sampler)
    assert trainer.runs == 0
    assert not sampler.busy
    assert sampler.pool.used == 0
