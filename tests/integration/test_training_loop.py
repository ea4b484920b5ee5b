"""The whole training loop over a real socket, through public names only."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tinkex
from support.clients import datum, prompt, service_for
from support.protocol_server import ProtocolServer
from support.socket_server import Cut, Stall, status

BATCH = [datum(i, i + 1, i + 2) for i in range(1, 11)]


@pytest.fixture
def server():
    with ProtocolServer(fwdbwd_max_chunk_len=3) as running:
        yield running


def test_a_batch_in_several_chunks_comes_back_as_one_result(server: ProtocolServer) -> None:
    with service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny", rank=4)
        step = training.forward_backward(BATCH, "cross_entropy")
        update = training.optim_step(tinkex.AdamParams(learning_rate=1e-3))
        result = step.result(timeout=30)
        assert update.result(timeout=30).metrics == {"grad_norm": 0.5}
    assert len(result.loss_fn_outputs) == 10
    assert result.metrics["datums:sum"] == 10
    expected = [np.array([*d.model_input.to_ints()[1:], 0]) / -10 for d in BATCH]
    for output, values in zip(result.loss_fn_outputs, expected, strict=True):
        np.testing.assert_allclose(output["logprobs"].to_numpy(), values, rtol=1e-6)
    assert [c.body["seq_id"] for c in server.asked("/forward_backward")][-1] == 1
    assert server.asked("/optim_step")[0].body["seq_id"] == 5


def test_chunks_go_in_order_when_the_server_wants_them_so(server: ProtocolServer) -> None:
    server.flags["parallel_fwdbwd_chunks"] = False
    with service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        training.forward_backward(BATCH, "cross_entropy").result(timeout=30)
    assert [c.body["seq_id"] for c in server.asked("/forward_backward")] == [1, 2, 3, 4]


def test_save_load_and_sample(server: ProtocolServer) -> None:
    with service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        saved = training.save_state("one").result(timeout=30).path
        weights = training.save_weights_for_sampler("two").result(timeout=30).path
        sampler = training.create_sampling_client(weights)
        again = service.create_training_client_from_state_with_optimizer(saved)
        assert again.model_id == "s1:train:1"
        answer = sampler.sample(prompt(1, 2), 1, tinkex.SamplingParams(max_tokens=2)).result(30)
        assert answer.sequences[0].tokens == [3, 4]
        assert sampler.get_base_model() == "acme/tiny"
    load = server.asked("/load_weights")[0].body
    assert load["optimizer"] is True
    assert load["seq_id"] == 1


def test_create_via_load_is_one_request(server: ProtocolServer) -> None:
    server.flags["create_model_via_load_weights"] = True
    with service_for(server) as service:
        path = "tinker://s9:train:0/weights/x"
        training = service.create_training_client_from_state(path)
        assert training.model_id == "s1:train:0"
        training.optim_step(tinkex.AdamParams()).result(timeout=30)
    assert not server.asked("/create_model")
    assert server.asked("/optim_step")[0].body["seq_id"] == 1


async def test_everything_can_be_awaited(server: ProtocolServer) -> None:
    service = service_for(server)
    training = await service.create_lora_training_client_async("acme/tiny")
    step = await training.forward_backward_async(BATCH, "cross_entropy")
    update = await training.optim_step_async(tinkex.AdamParams())
    result, metrics = await asyncio.gather(step, update.result_async(timeout=30))
    assert result.metrics["datums:sum"] == 10
    assert metrics.metrics == {"grad_norm": 0.5}
    sampler = await training.save_weights_and_get_sampling_client_async()
    answer = await sampler.sample_async(prompt(4), 1, tinkex.SamplingParams(max_tokens=1))
    assert answer.sequences[0].tokens == [4]
    await service.close("success")


def test_submission_order_is_call_order_from_many_threads(server: ProtocolServer) -> None:
    with service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        with ThreadPoolExecutor(8) as pool:
            steps = list(pool.map(lambda _: training.optim_step(tinkex.AdamParams()), range(40)))
        for step in steps:
            step.result(timeout=30)
    assert [c.body["seq_id"] for c in server.asked("/optim_step")] == list(range(1, 41))


def test_a_refused_chunk_fails_its_call_and_nothing_else(server: ProtocolServer) -> None:
    server.fail("/forward_backward", status(422))
    with service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        broken = training.forward_backward(BATCH, "cross_entropy")
        after = training.optim_step(tinkex.AdamParams())
        with pytest.raises(tinkex.UnprocessableEntityError):
            broken.result(timeout=30)
        assert after.result(timeout=30).metrics == {"grad_norm": 0.5}
        assert training.forward(BATCH[:1], "cross_entropy").result(30).metrics["datums:sum"] == 1


def test_training_retries_what_may_pass(server: ProtocolServer) -> None:
    for fault in (
        status(408),
        status(409),
        status(429, retry_after="0.01"),
        status(429, retry_after_ms="5"),
        status(503),
        Cut(after=0),
        Cut(after=30),
    ):
        server.fail("/optim_step", fault)
    with service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        assert training.optim_step(tinkex.AdamParams()).result(timeout=60).metrics
    asked = server.asked("/optim_step")
    assert len(asked) == 8
    assert {call.body["seq_id"] for call in asked} == {1}


def test_x_should_retry_decides(server: ProtocolServer) -> None:
    server.fail("/create_model", status(503, x_should_retry="false"))
    server.fail("/create_session", status(404, x_should_retry="true"))
    with service_for(server) as service:
        with pytest.raises(tinkex.InternalServerError):
            service.create_lora_training_client("acme/tiny")
        assert service.create_lora_training_client("acme/tiny").model_id == "s1:train:1"
    assert server.count("/create_session") == 2


def test_giving_up_the_wait_does_not_take_the_operation_back(server: ProtocolServer) -> None:
    server.fail("/optim_step", Stall(0.3))
    with service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        step = training.optim_step(tinkex.AdamParams())
        with pytest.raises(TimeoutError):
            step.result(timeout=0.01)

        async def impatient() -> None:
            with pytest.raises(TimeoutError):
                await step.result_async(timeout=0.01)

        asyncio.run(impatient())
        assert step.result(timeout=30).metrics == {"grad_norm": 0.5}


def test_compressed_bodies_when_the_server_asks(server: ProtocolServer) -> None:
    server.flags["proto_compress_fwdbwd"] = True
    with service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        training.forward_backward(BATCH, "cross_entropy").result(timeout=30)
    headers = [r.headers for r in server.requests if r.path.endswith("/forward_backward")]
    assert all(h["content-encoding"] == "zstd" for h in headers)


def test_a_server_without_protobuf_gets_json_and_may_answer_it(server: ProtocolServer) -> None:
    server.json_results = True
    server.fail("/forward_backward", status(415))
    with service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        training.forward_backward(BATCH[:1], "cross_entropy").result(timeout=30)
        result = training.forward_backward(BATCH, "cross_entropy").result(timeout=30)
        assert len(result.loss_fn_outputs) == 10
    kinds = [
        r.headers["content-type"] for r in server.requests if r.path.endswith("/forward_backward")
    ]
    assert kinds == ["application/x-protobuf", *["application/json"] * 5]


def test_a_large_result_is_announced_then_fetched(server: ProtocolServer) -> None:
    server.metadata_first = True
    server.flags["inflight_response_bytes_semaphore_size"] = 10
    with service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        result = training.forward_backward(BATCH, "cross_entropy").result(timeout=30)
    assert len(result.loss_fn_outputs) == 10
    flags = [c.body["allow_metadata_only"] for c in server.asked("/retrieve_future")]
    assert flags.count(True) == flags.count(False)
