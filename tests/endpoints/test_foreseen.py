"""What a stream begins on before its first token: never on what the engine then refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.fake_engine import READY
from tinkex.engine.errors import UserError
from tinkex.engine.messages import AnswerForm, Grammar, Sample, SamplingControls, SamplingParams
from tinkex.engine.sampling.checks import check_sample
from tinkex.server.endpoints.foreseen import is_sure

VOCABULARY, CONTEXT = READY.vocab_size, READY.max_context


def sample(prompt: int = 3, highest: int = 5, **params: Any) -> Sample:
    tokens = np.full(prompt, highest, np.int32)
    return Sample("", "", tokens, SamplingParams(**{"max_tokens": 16, **params}))


PLAIN = {
    "plain": sample(),
    "no limit": sample(max_tokens=None),
    "stop texts": sample(stop=("END", "\n\n")),
    "as long as fits": sample(CONTEXT - 16),
    "controls that cannot be wrong": replace(sample(), num_samples=8),
}
REFUSED = {
    "too long": sample(CONTEXT - 15),
    "no room": sample(CONTEXT, max_tokens=None),
    "an id beyond the vocabulary": sample(highest=VOCABULARY),
    "a stop id beyond it": sample(stop=(VOCABULARY,)),
    "no prompt": sample(0),
    "a context of its own": replace(sample(), context=18),
    "a bias too large": replace(sample(), controls=SamplingControls(logit_bias={1: 101.0})),
    "nothing allowed": replace(sample(), controls=SamplingControls(allowed_tokens=())),
    "more than there are": replace(sample(), topk_sample_logprobs=VOCABULARY + 1),
}


@pytest.mark.parametrize("name", PLAIN)
def test_what_the_engine_takes_anyway_is_not_waited_for(name: str) -> None:
    assert is_sure(PLAIN[name], READY)
    check_sample(PLAIN[name], vocab_size=VOCABULARY, max_tokens_total=CONTEXT)


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_engine_refuses_is_waited_for(name: str) -> None:
    assert not is_sure(REFUSED[name], READY)
    with pytest.raises(UserError):
        check_sample(REFUSED[name], vocab_size=VOCABULARY, max_tokens_total=CONTEXT)


def test_a_grammar_may_not_compile_and_an_engine_that_starts_has_no_facts() -> None:
    assert not is_sure(replace(sample(), grammar=Grammar((AnswerForm(),))), READY)
    assert not is_sure(sample(), None)
