"""What a notebook shows of a result: its numbers, on a line or two, however many there are."""

import numpy as np

from tinkex.types import ForwardBackwardOutput, SampledSequence, SampleResponse, TensorData


def sequence(count: int) -> SampledSequence:
    return SampledSequence(
        stop_reason="stop",
        sequence_id="a",
        tokens_np=np.arange(count, dtype=np.int32),
        logprobs_np=np.full(count, -1 / 3, dtype=np.float32),
    )


def test_a_sample_shows_its_tokens() -> None:
    assert repr(SampleResponse(sequences=[sequence(2)])) == (
        "SampleResponse(sequences=[SampledSequence(tokens=[0, 1], logprobs=[-0.3333, -0.3333], "
        "stop_reason='stop', sequence_id='a')])"
    )


def test_long_results_are_shortened() -> None:
    assert "tokens=[0, 1, 2, 3, 4, 5, 6, 7, … 9992 more]" in repr(sequence(10_000))
    scored = SampleResponse(sequences=[], prompt_logprobs_np=np.zeros(9, dtype=np.float32))
    assert repr(scored).endswith("prompt_logprobs=[0, 0, 0, 0, 0, 0, 0, 0, … 1 more])")


def test_tensors_show_their_numbers() -> None:
    dense = TensorData(data=[1, 2, 3, 4], dtype="int64", shape=[2, 2])
    assert repr(dense) == "TensorData(data=[1, 2, 3, 4], dtype='int64', shape=[2, 2])"
    outputs = [{"logprobs": TensorData(data=[0.5], dtype="float32")}] * 100
    shown = repr(ForwardBackwardOutput("t", outputs, {"loss:sum": 2.0}))
    assert "loss:sum" in shown
    assert "data=[0.5]" in shown
    assert "… 92 more]" in shown


def test_values_made_from_lists_show_the_same() -> None:
    made = SampledSequence("stop", "a", _tokens_list=[1, 2], _logprobs_list=[-0.5, -0.25])
    assert "tokens=[1, 2], logprobs=[-0.5, -0.25]" in repr(made)
