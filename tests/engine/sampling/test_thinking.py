"""An answer that begins with reasoning ends it when its budget is spent; others draw as ever."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from support.sampling import make_sampler, prompt_of, sample, tiny_decoder, tiny_folder
from tinkex.engine.adapters.peft_files import read_adapter
from tinkex.engine.errors import UserError
from tinkex.engine.messages import (
    AnswerForm,
    Done,
    Grammar,
    Sample,
    SampleResult,
    SamplingControls,
    Thinking,
)
from tinkex.engine.sampling.limits import SamplerLimits
from tinkex.engine.sampling.model_end import Ending, read_ending
from tinkex.engine.sampling.sampler import Sampler

ENDING = "\n</think>\n\n"
TOKENIZER = read_ending(tiny_folder()).tokenizer
assert TOKENIZER is not None


def ids(text: str) -> list[int]:
    assert TOKENIZER is not None
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


(OPEN,), (CLOSE,), ENDED = ids("<think>"), ids("</think>"), ids(ENDING)


def budget(tokens: int, inside: bool = True) -> Thinking:
    return Thinking(tokens, "<think>", "</think>", ENDING, inside)


def drawn(command: Sample) -> list[int]:
    sampler = make_sampler()
    sampler.submit(command)
    for _ in itertools.count():
        for event in sampler.step():
            if isinstance(event, Done):
                assert isinstance(event.result, SampleResult)
                return event.result.sequences[0].tokens.tolist()
    raise AssertionError


def forever() -> Sample:
    """Never closes its reasoning by itself."""
    kept = SamplingControls(logit_bias={CLOSE: -100.0})
    return sample("a", prompt_of(0, 9), max_tokens=30, stop=(), seed=3, asks={"controls": kept})


def test_reasoning_ends_when_its_budget_is_spent() -> None:
    free = drawn(forever())
    for tokens in (1, 7, 20):
        held = drawn(dataclasses.replace(forever(), thinking=budget(tokens)))
        assert held[:tokens] == free[:tokens]
        assert held[tokens : tokens + len(ENDED)] == ENDED
        assert len(held) == 30


def test_reasoning_that_ends_in_time_is_left_alone() -> None:
    command = sample("a", prompt_of(0, 9), max_tokens=30, stop=(), seed=3)
    sooner = dataclasses.replace(command, controls=SamplingControls(logit_bias={CLOSE: 100.0}))
    assert drawn(dataclasses.replace(sooner, thinking=budget(5))) == drawn(sooner)


def test_an_answer_that_does_not_begin_with_reasoning_has_no_budget() -> None:
    assert drawn(dataclasses.replace(forever(), thinking=budget(5, inside=False))) == drawn(
        forever()
    )


def test_reasoning_that_the_model_opens_itself_counts_from_its_first_token() -> None:
    opens = sample("a", prompt_of(0, 9), max_tokens=20, stop=(), seed=3)
    only = SamplingControls(allowed_tokens=(OPEN, 65, 66))
    likely = dataclasses.replace(only, logit_bias={OPEN: 100.0})
    found = drawn(dataclasses.replace(opens, controls=likely, thinking=budget(4, inside=False)))
    assert found[0] == OPEN
    assert found[4 : 4 + len(ENDED)] == ENDED


def test_the_answer_after_a_cut_keeps_to_its_grammar() -> None:
    grammar = Grammar((AnswerForm(schema='{"enum": ["yes"]}'),), thinking_end="</think>")
    sampler = make_sampler(max_context=512)
    sampler.submit(dataclasses.replace(forever(), grammar=grammar, thinking=budget(6)))
    found: list[int] = []
    while not found:
        for event in sampler.step() if sampler.busy else ():
            assert isinstance(event, Done), event
            assert isinstance(event.result, SampleResult)
            found = event.result.sequences[0].tokens.tolist()
    sampler.grammars.close()
    text = TOKENIZER.decode(found, skip_special_tokens=False)
    assert text.partition("</think>")[2].strip() == '"yes"'


def test_a_model_without_a_tokenizer_refuses_a_budget_by_name() -> None:
    limits = SamplerLimits(pages=64, max_context=512)
    bare = Sampler(tiny_decoder(), Ending((), None), limits, read_adapter)
    with pytest.raises(UserError, match=r"^thinking: .*tokenizer"):
        bare.submit(dataclasses.replace(forever(), thinking=budget(5)))
    assert not bare.busy
