"""What attention over long sequences relies on is tried first; what fails is not used, and said."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from support.sampling import tiny_decoder
from tinkex.engine.limits import Limits
from tinkex.engine.training import attention
from tinkex.engine.training.attention import PackedAttention
from tinkex.engine.training.long_attention import LongAttention, tried
from tinkex.engine.training.passes import Passes


def test_what_works_is_used_and_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert tried(tiny_decoder(), 20) == LongAttention(whole=True, kept=True)
    assert caplog.records == []


def test_a_library_that_fails_is_left_out_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = PackedAttention.__init__

    def init(self: Any, *given: Any, whole: bool) -> None:
        if whole:
            raise RuntimeError("cuDNN Frontend error: no plan\nmore of it")
        asked(self, *given, whole=whole)

    monkeypatch.setattr(PackedAttention, "__init__", init)
    assert tried(tiny_decoder(), 20) == LongAttention(whole=False, kept=True)
    (record,) = caplog.records
    said = record.getMessage()
    assert said == (
        "cuDNN attention does not work here and is left out: "
        "RuntimeError: cuDNN Frontend error: no plan"
    )


def test_a_refusal_that_was_made_good_counts_as_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = PackedAttention.__call__

    def call(self: Any, *given: Any) -> Tensor:
        self.refused = "no plan"
        return asked(self, *given)

    monkeypatch.setattr(PackedAttention, "__call__", call)
    assert tried(tiny_decoder(), 20).whole is False


def test_a_length_that_cudnn_refuses_after_all_goes_to_the_usual_kernel(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def whole(*heads: Tensor) -> Tensor:
        raise RuntimeError("no plan")

    attend = PackedAttention([5], [None], torch.device("cpu"))
    attend._alone = True
    monkeypatch.setattr(attention, "_whole", whole)
    monkeypatch.setattr(PackedAttention, "_varlen", lambda self, q, k, v, window: q)
    q = torch.ones(5, 2, 4)
    with caplog.at_level(logging.WARNING):
        assert attend._whole_or_varlen(q, q, q) is q
    assert "no plan" in caplog.text
    assert attend._alone is False
    assert attend.refused == "no plan"

    def full(*heads: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(attention, "_whole", full)
    with pytest.raises(torch.OutOfMemoryError):
        attend._whole_or_varlen(q, q, q)


def test_it_is_tried_in_idle_time_and_not_while_somebody_waits_for_an_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials: list[Passes] = []
    monkeypatch.setattr(Passes, "_tried", lambda self: trials.append(self) or LongAttention())
    passes = Passes(tiny_decoder(), Limits())
    assert not trials
    while passes.prepare():
        pass
    assert trials == [passes]
