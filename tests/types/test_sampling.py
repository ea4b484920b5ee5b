"""Sampling values: parameters that warn about typos, results that keep arrays."""

import pickle
import warnings

import numpy as np
import pytest
from pydantic import ValidationError

from tinkex.types import (
    ModelInput,
    SampledSequence,
    SampleRequest,
    SampleResponse,
    SamplingParams,
    TensorData,
    TopkLogprobs,
)

EMPTY = -99999.0


def test_an_unknown_parameter_is_accepted_and_warned_about_once() -> None:
    with pytest.warns(UserWarning, match="temprature"):
        assert SamplingParams(temprature=0.5).temperature == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SamplingParams(temprature=0.5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_tokens": -1},
        {"temperature": float("nan")},
        {"temperature": -0.1},
        {"top_p": 1.5},
        {"top_k": -2},
        {"stop": [1, "a"]},
    ],
)
def test_impossible_parameters_are_named(arguments: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(arguments))):
        SamplingParams(**arguments)


def test_stop_keeps_its_three_meanings() -> None:
    assert SamplingParams().stop is None
    assert SamplingParams(stop=[]).model_dump_json(exclude_none=True).count('"stop":[]') == 1
    assert SamplingParams(stop=[1, 2]).stop == [1, 2]
    assert SamplingParams(stop=["a"]).stop == ["a"]
    assert SamplingParams(stop="a").stop == "a"


def test_a_sample_request_round_trips_with_its_tensor() -> None:
    request = SampleRequest(
        prompt=ModelInput.from_ints([1, 2, 3]),
        sampling_params=SamplingParams(max_tokens=3),
        target_prompt_logprobs=TensorData([1, 2], "int64", [2, 1]),
        seq_id=7 * 10**17 + 1,
    )
    again = SampleRequest.model_validate_json(request.model_dump_json(exclude_none=True))
    assert again.target_prompt_logprobs is not None
    assert again.target_prompt_logprobs.tolist() == [[1], [2]]
    assert again.seq_id == 7 * 10**17 + 1


@pytest.mark.parametrize("field", ["num_samples", "topk_prompt_logprobs"])
def test_counts_are_not_bools_or_negative(field: str) -> None:
    prompt, params = ModelInput.from_ints([1]), SamplingParams()
    for value in (True, -1):
        with pytest.raises(ValidationError, match=field):
            SampleRequest(prompt=prompt, sampling_params=params, **{field: value})


def topk() -> TopkLogprobs:
    return TopkLogprobs(
        np.array([[1, 0], [0, 0], [0, 3], [0, 4]], np.int32),
        np.array([[-1, EMPTY], [EMPTY, EMPTY], [EMPTY, -1], [-2, -3]], np.float32),
    )


TOPK_LIST = [[(1, -1.0)], None, None, [(0, -2.0), (4, -3.0)]]


def test_topk_tables_lose_their_empty_cells() -> None:
    assert topk().tolist() == TOPK_LIST
    empty = np.zeros((2, 0))
    assert TopkLogprobs(empty.astype(np.int32), empty.astype(np.float32)).tolist() == [None, None]


def test_a_sequence_makes_each_list_once() -> None:
    sequence = SampledSequence(
        "stop", "id", np.array([1, 2], np.int32), np.array([-0.5, -1], np.float32), topk()
    )
    assert sequence.tokens == [1, 2]
    assert sequence.tokens is sequence.tokens
    assert sequence.logprobs == [-0.5, -1.0]
    assert sequence.topk_logprobs == TOPK_LIST
    assert repr(sequence).startswith("SampledSequence(tokens=[1, 2], logprobs=[-0.5, -1],")
    assert pickle.loads(pickle.dumps(sequence)).tokens == [1, 2]


def test_a_sequence_from_lists_reads_the_same() -> None:
    sequence = SampledSequence("length", "id", _tokens_list=[1], _logprobs_list=[-1.0])
    assert (sequence.tokens, sequence.logprobs, sequence.topk_logprobs) == ([1], [-1.0], None)
    assert SampledSequence("length", "id").tokens == []


def test_prompt_logprobs_are_none_where_there_is_none() -> None:
    response = SampleResponse([], prompt_logprobs_np=np.array([np.nan, -1], np.float32))
    assert response.prompt_logprobs == [None, -1.0]
    assert SampleResponse([], topk_prompt_logprobs_np=topk()).topk_prompt_logprobs == TOPK_LIST
    assert SampleResponse([]).prompt_logprobs is None
