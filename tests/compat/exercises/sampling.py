"""Exercises of `SamplingClient`."""

from __future__ import annotations

from compat.exercises.registry import proves
from compat.world import PROMPT, World


@proves("SamplingClient.sample")
def _(w: World) -> None:
    result = w.sampling.sample(
        w.prompt(), 2, w.params(4), include_prompt_logprobs=True, topk_prompt_logprobs=2
    ).result()
    assert [len(sequence.tokens) for sequence in result.sequences] == [4, 4]
    assert [len(sequence.logprobs) for sequence in result.sequences] == [4, 4]
    assert result.prompt_logprobs[0] is None
    assert len(result.prompt_logprobs) == len(PROMPT)
    assert all(len(row) == 2 for row in result.topk_prompt_logprobs[1:])


@proves("SamplingClient.sample_async")
def _(w: World) -> None:
    result = w.run(
        w.sampling.sample_async(
            w.prompt(), 1, w.params(), topk_sample_logprobs=3, prompt_alt_tokens_k=2
        )
    )
    assert result.sequences[0].stop_reason == "length"
    again = w.sampling.sample(w.prompt(), 1, w.params()).result()
    assert again.sequences[0].tokens == result.sequences[0].tokens


@proves("SamplingClient.compute_logprobs")
def _(w: World) -> None:
    whole = w.sampling.compute_logprobs(w.prompt()).result()
    assert whole[0] is None
    assert all(value <= 0 for value in whole[1:])


@proves("SamplingClient.compute_logprobs_async")
def _(w: World) -> None:
    last = w.run(w.sampling.compute_logprobs_async(w.prompt(), prompt_logprobs_last_n=2))
    assert [value is None for value in last] == [True, True, True, False, False]


@proves("SamplingClient.get_base_model")
def _(w: World) -> None:
    assert w.sampling.get_base_model() == w.base_model


@proves("SamplingClient.get_base_model_async")
def _(w: World) -> None:
    assert w.run(w.sampling.get_base_model_async()) == w.base_model


@proves("SamplingClient.get_tokenizer")
def _(w: World) -> None:
    assert w.sampling.get_tokenizer().encode("A")


@proves("SamplingClient.get_sampler_handle", "SamplingClient.from_sampler_handle")
def _(w: World) -> None:
    if w.base_url == "local":
        w.assert_stays_in_process(w.sampling)
        return
    handle = w.sampling.get_sampler_handle()
    assert w.api_key not in handle
    copy = w.sdk.SamplingClient.from_sampler_handle(handle, api_key=w.api_key)
    ours = w.sampling.sample(w.prompt(), 1, w.params()).result().sequences[0].tokens
    assert copy.sample(w.prompt(), 1, w.params()).result().sequences[0].tokens == ours


@proves("SamplingClient.create")
def _(w: World) -> None:
    client = w.sdk.SamplingClient.create(w.service.holder, base_model=w.base_model).result()
    assert client.get_base_model() == w.base_model


@proves("SamplingClient.on_queue_state_change")
def _(w: World) -> None:
    assert callable(w.sampling.on_queue_state_change)
