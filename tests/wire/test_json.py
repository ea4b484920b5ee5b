"""JSON bodies: the official package reads ours, we read its, and bad ones are named."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.batches import (
    build_chunk,
    build_datum,
    configs,
    datums,
    dmel_chunks,
    image_chunks,
    names,
    text_chunks,
)
from tinkex import types
from tinkex.types import (
    AdamParams,
    CreateModelRequest,
    LoraConfig,
    ModelInput,
    OptimStepRequest,
    SamplingParams,
    TensorData,
    UntypedAPIFuture,
)
from tinkex.wire.json import (
    WireError,
    decode,
    decode_forward_backward_json,
    dumps,
    encode_forward_backward_json,
    encode_request,
    encode_sample,
    forward_backward_output_from_json,
    loads,
    sample_response_from_json,
)

official = pytest.importorskip("tinker.types")


def test_text_is_compact_utf8_without_nan() -> None:
    assert dumps({"a": [1, None, "ü"]}) == '{"a":[1,null,"ü"]}'.encode()
    assert loads(b'{"a":1}') == {"a": 1}
    for value in (float("nan"), float("inf"), object()):
        with pytest.raises(WireError, match="cannot be written as JSON"):
            dumps([value])
    for body in (b"", b"{", b"[NaN]", b"\xff"):
        with pytest.raises(WireError, match="not valid JSON"):
            loads(body)


def test_requests_drop_none_keep_defaults_and_keep_the_declared_order() -> None:
    request = CreateModelRequest(
        session_id="s", model_seq_id=0, base_model="b", lora_config=LoraConfig(rank=8)
    )
    assert encode_request(request) == (
        b'{"session_id":"s","model_seq_id":0,"base_model":"b","lora_config":{"rank":8,'
        b'"train_unembed":true,"train_mlp":true,"train_attn":true},'
        b'"optimizer_config":{"type":"adamw"},"type":"create_model"}'
    )
    step = OptimStepRequest(optim_params=AdamParams(), model_id="m", seq_id=2)
    assert list(loads(encode_request(step))) == ["model_id", "seq_id", "type", "adam_params"]


params = st.builds(
    dict,
    max_tokens=st.none() | st.integers(0, 2**31),
    seed=st.none() | st.integers(0, 2**63 - 1),
    stop=st.none() | names | st.lists(names, max_size=2) | st.lists(st.integers(0, 9), max_size=2),
    temperature=st.floats(0, 2),
    top_k=st.integers(-1, 50),
    top_p=st.floats(0, 1),
)
samples = st.fixed_dictionaries(
    {
        "num_samples": st.integers(1, 8),
        "sampling_session_id": names,
        "seq_id": st.integers(0, 10**18),
        "prompt_logprobs": st.booleans(),
        "topk_prompt_logprobs": st.integers(0, 5),
        "topk_sample_logprobs": st.integers(0, 5),
        "prompt_alt_tokens_k": st.integers(0, 5),
        "prompt_logprobs_last_n": st.none() | st.integers(1, 5),
        "record_stability_info": st.booleans(),
    }
)
chunks = st.lists(text_chunks | image_chunks | dmel_chunks, max_size=3)
targets = st.none() | st.lists(st.integers(-1, 9), min_size=2, max_size=2)


@given(samples, params, chunks, targets)
def test_an_asample_body_is_the_one_the_official_package_writes(
    fields: dict[str, Any], sampling: dict[str, Any], prompt: Any, target: list[int] | None
) -> None:
    body = encode_sample(
        prompt=ModelInput(chunks=[build_chunk(types, chunk) for chunk in prompt]),
        sampling_params=SamplingParams(**sampling),
        target_prompt_logprobs=None if target is None else TensorData(target, "int64", [2, 1]),
        **fields,
    )
    tensor = {"data": target, "dtype": "int64", "shape": [2, 1]}
    wanted = official.SampleRequest(
        prompt=official.ModelInput(chunks=[build_chunk(official, chunk) for chunk in prompt]),
        sampling_params=official.SamplingParams(**sampling),
        target_prompt_logprobs=None if target is None else tensor,
        **fields,
    )
    assert json.loads(body) == wanted.model_dump(mode="json", exclude_none=True)
    assert list(json.loads(body)) == list(wanted.model_dump(mode="json", exclude_none=True))
    assert official.SampleRequest.model_validate_json(body) == official.SampleRequest(
        **wanted.__dict__
    )
    read = decode(types.SampleRequest, wanted.model_dump_json(exclude_none=True).encode())
    assert read.seq_id == fields["seq_id"]
    assert read.prompt == ModelInput(chunks=[build_chunk(types, chunk) for chunk in prompt])
    assert read.sampling_params == SamplingParams(**sampling)


def test_arrays_make_the_same_body_as_lists() -> None:
    common = {"sampling_params": SamplingParams(), "sampling_session_id": "s", "seq_id": 0}
    from_list = encode_sample(prompt=ModelInput.from_ints([1, 2]), **common)
    array = ModelInput.from_ints(np.array([1, 2]))
    assert encode_sample(prompt=array, **common) == from_list


def test_errors_never_quote_the_value() -> None:
    with pytest.raises(WireError) as caught:
        decode(UntypedAPIFuture, b'{"request_id": {"secret": "tml-hush"}}')
    assert caught.value.field == "request_id"
    assert "hush" not in str(caught.value)
    with pytest.raises(WireError, match="must be a JSON object, got list"):
        decode(UntypedAPIFuture, b"[]")


@given(st.lists(datums, max_size=2), configs, st.booleans())
def test_a_json_forward_backward_means_what_its_datums_mean(
    data: list[Any], config: dict[str, Any], forward_only: bool
) -> None:
    made = [build_datum(types, description) for description in data]
    body = encode_forward_backward_json("m", 3, made, "ppo", config, forward_only)
    call = decode_forward_backward_json(body)
    assert (call.model_id, call.seq_id, call.loss_fn) == ("m", 3, "ppo")
    assert call.loss_fn_config == config
    assert call.forward_only == forward_only
    for found, wanted in zip(call.data, made, strict=True):
        assert found.model_input_spans == (wanted.model_input_spans or [])
        for name, tensor in wanted.loss_fn_inputs.items():
            got = found.inputs[name]
            values = got if isinstance(got, np.ndarray) else got.values
            assert values.ravel().tolist() == tensor.data
        for chunk, original in zip(found.chunks, wanted.model_input.chunks, strict=True):
            if isinstance(chunk, np.ndarray):
                assert chunk.tolist() == list(original.tokens)
            else:
                assert chunk == original


def fwdbwd_body(**changes: Any) -> bytes:
    datum = {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": [1]}]},
        "loss_fn_inputs": {"weights": {"data": [1.0], "dtype": "float32"}},
    }
    content = {"data": [{**datum, **changes.pop("datum", {})}], "loss_fn": "ppo"}
    content.update(changes.pop("content", {}))
    return dumps({"model_id": "m", "seq_id": 1, "forward_backward_input": content, **changes})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_id": ""}, "model_id"),
        ({"seq_id": 0}, "seq_id"),
        ({"seq_id": True}, "seq_id"),
        ({"forward_backward_input": None}, "forward_backward_input"),
        ({"content": {"data": 3}}, "forward_backward_input.data"),
        ({"content": {"loss_fn": None}}, "loss_fn"),
        ({"content": {"loss_fn_config": [1]}}, "forward_backward_input.loss_fn_config"),
        (
            {"content": {"loss_fn_config": {"b": None}}},
            "forward_backward_input.loss_fn_config['b']",
        ),
        (
            {"datum": {"model_input": {"chunks": [{"tokens": ["x"]}]}}},
            "forward_backward_input.data[0].model_input.chunks[0].encoded_text.tokens",
        ),
        (
            {"datum": {"loss_fn_inputs": {"weights": {"data": [[1], [1, 2]], "dtype": "float32"}}}},
            "forward_backward_input.data[0].loss_fn_inputs['weights']",
        ),
        (
            {"datum": {"loss_fn_inputs": {"weights": {"data": [1], "kind": "float32"}}}},
            "forward_backward_input.data[0].loss_fn_inputs['weights'].kind",
        ),
        (
            {"datum": {"model_input_spans": [{"type": "sampled", "length": 1}]}},
            "forward_backward_input.data[0].model_input_spans[0]",
        ),
        (
            {
                "datum": {
                    "model_input": {
                        "chunks": [
                            {"type": "image_asset_pointer", "format": "png", "location": "x"}
                        ]
                    }
                }
            },
            "forward_backward_input.data[0].model_input",
        ),
    ],
)
def test_a_bad_json_forward_backward_names_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_forward_backward_json(fwdbwd_body(**changes))
    assert caught.value.field == field


def test_json_results_of_sampling_are_read() -> None:
    response = sample_response_from_json(
        {
            "sequences": [
                {
                    "stop_reason": "stop",
                    "tokens": [1, 2],
                    "logprobs": [-0.5, -1],
                    "topk_logprobs": [[[3, -1.5]], None],
                }
            ],
            "prompt_logprobs": [None, -2.0],
            "topk_prompt_logprobs": [None, [[4, -1.0]]],
            "prompt_alt_tokens": {
                "tokens": {"data": [1], "dtype": "int64"},
                "logprobs": {"data": [-1.0], "dtype": "float32"},
            },
        },
        ["id"],
    )
    sequence = response.sequences[0]
    assert (sequence.tokens, sequence.logprobs, sequence.sequence_id) == ([1, 2], [-0.5, -1], "id")
    assert sequence.topk_logprobs == [[(3, -1.5)], None]
    assert response.prompt_logprobs == [None, -2.0]
    assert response.topk_prompt_logprobs == [None, [(4, -1.0)]]
    assert response.prompt_alt_tokens is not None


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ([], "sequences"),
        ({"sequences": []}, "sequences"),
        ({"sequences": [3]}, "sequences[0]"),
        ({"sequences": [{"stop_reason": "x"}]}, "sequences[0].stop_reason"),
        ({"sequences": [{"stop_reason": "stop", "tokens": ["a"]}]}, "sequences[0].tokens"),
        ({"sequences": [{"stop_reason": "stop", "tokens": [[1]]}]}, "sequences[0].tokens"),
        (
            {"sequences": [{"stop_reason": "stop", "topk_logprobs": [3]}]},
            "sequences[0].topk_logprobs",
        ),
    ],
)
def test_bad_json_results_of_sampling_are_named(value: Any, field: str) -> None:
    with pytest.raises(WireError) as caught:
        sample_response_from_json(value, ["id"])
    assert caught.value.field == field


def test_json_results_of_forward_backward_are_read() -> None:
    tensor = {"data": [-1.0, -2.0], "dtype": "float32", "shape": [2]}
    output = forward_backward_output_from_json(
        {
            "loss_fn_output_type": "x:ArrayRecord",
            "loss_fn_outputs": [{"logprobs": tensor}],
            "metrics": {"loss:sum": 3},
        }
    )
    assert output.loss_fn_output_type == "ArrayRecord"
    assert output.loss_fn_outputs[0]["logprobs"].tolist() == [-1.0, -2.0]
    assert output.metrics == {"loss:sum": 3.0}
    for bad in ([], {"loss_fn_outputs": [1]}, {"loss_fn_outputs": [{"x": 1}]}):
        with pytest.raises(WireError, match="loss_fn_outputs"):
            forward_backward_output_from_json(bad)
