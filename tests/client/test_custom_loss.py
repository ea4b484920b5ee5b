"""Custom losses: the gradient that reaches the server is the one of the user's function."""

import asyncio
import math
import operator
from typing import Any

import numpy as np
import pytest

import tinkex
from support.clients import datum, service_for
from support.protocol_server import ProtocolServer
from tinkex.client.events.bus import TRAINING_MEASURED, EventBus
from tinkex.client.training import regularizers
from tinkex.client.training.custom_loss import LossHandle, custom_step
from tinkex.client.training.loss_tracing import declared_inputs, graph_for_wire, trace
from tinkex.types import Datum, ForwardBackwardOutput, TensorData

torch = pytest.importorskip("torch")

DATA = [datum(1, 2, 3), datum(4, 5)]


def forward_of(data: list[Datum]) -> ForwardBackwardOutput:
    outputs = [
        {
            "logprobs": TensorData.from_numpy(
                -np.asarray(d.loss_fn_inputs["target_tokens"].data) / 10.0
            )
        }
        for d in data
    ]
    return ForwardBackwardOutput("X", outputs, {"loss:sum": 0.0})


def squares(data: list[Datum], logprobs: list[Any]) -> Any:
    return sum((values**2).sum() for values in logprobs), {"n:sum": float(len(logprobs))}


def weights(data: list[Datum]) -> list[list[float]]:
    return [d.loss_fn_inputs["weights"].tolist() for d in data]


def test_the_weights_are_minus_the_gradient() -> None:
    step = custom_step(DATA, squares)
    backward = step.backward_data(forward_of(DATA))
    logprobs = [o["logprobs"].to_numpy() for o in forward_of(DATA).loss_fn_outputs]
    for given, values in zip(weights(backward), logprobs, strict=True):
        np.testing.assert_allclose(given, -2 * values, rtol=1e-6)
    result = step.finish(ForwardBackwardOutput("X", [], {"loss:sum": 7.0, "a:mean": 1.0}))
    assert result.metrics["surrogate_loss:sum"] == 7.0
    assert result.metrics["loss:sum"] == pytest.approx(float(sum((v**2).sum() for v in logprobs)))
    assert result.metrics["n:sum"] == 2.0
    assert result.metrics["a:mean"] == 1.0


def test_missing_weights_are_zeros_in_the_forward_pass() -> None:
    bare = Datum(DATA[0].model_input, {"target_tokens": [2, 3, 0]})
    assert weights(custom_step([bare], squares).forward_data) == [[0.0, 0.0, 0.0]]


def test_inputs_that_only_the_function_reads_may_hold_nan() -> None:
    """A reference model has no logprob for the first token."""
    reference = TensorData([math.nan, -1.0, -2.0], "float32")
    mine = Datum(DATA[0].model_input, {**DATA[0].loss_fn_inputs, "reference": reference})

    def distance(data: list[Datum], logprobs: list[Any]) -> Any:
        known = data[0].loss_fn_inputs["reference"].to_torch().nan_to_num(0.0)
        return (logprobs[0] * known).sum(), {}

    step = custom_step([mine], distance)
    assert sorted(step.forward_data[0].loss_fn_inputs) == ["target_tokens", "weights"]
    assert weights(step.backward_data(forward_of([mine]))) == [[0.0, 1.0, 2.0]]


def test_two_dimensional_targets_keep_their_shape() -> None:
    targets = np.array([[1, 2], [3, 4], [5, 6]])
    data = [Datum(DATA[0].model_input, {"target_tokens": targets})]
    step = custom_step(data, squares)
    logprobs = TensorData.from_numpy(np.full((3, 2), -0.5, dtype=np.float32))
    backward = step.backward_data(ForwardBackwardOutput("X", [{"logprobs": logprobs}]))
    np.testing.assert_allclose(backward[0].loss_fn_inputs["weights"].to_numpy(), 1.0)


@pytest.mark.parametrize(
    ("function", "kind", "says"),
    [
        (lambda d, lp: lp[0].sum(), TypeError, r"\(loss, metrics\)"),
        (lambda d, lp: (1.0, {}), TypeError, "tensor with one element"),
        (lambda d, lp: (lp[0], {}), TypeError, "tensor with one element"),
        (lambda d, lp: (torch.tensor(1.0), {}), ValueError, "does not depend"),
        (lambda d, lp: (lp[0].sum(), {}), ValueError, r"logprobs of data\[1\]"),
        (lambda d, lp: (lp[0].sum() * float("nan") + lp[1].sum(), {}), ValueError, "nan"),
        (lambda d, lp: (lp[0].abs().sqrt().sum() + lp[1].sum(), {}), ValueError, "not finite"),
    ],
)
def test_functions_that_cannot_be_trained_on(function: Any, kind: Any, says: str) -> None:
    with pytest.raises(kind, match=says):
        custom_step(DATA, function).backward_data(forward_of(DATA))


def test_data_without_targets_and_losses_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="target_tokens"):
        custom_step([Datum(DATA[0].model_input)], squares)
    with pytest.raises(TypeError, match="expected a function"):
        custom_step(DATA, "cross_entropy")


def test_listeners_hear_of_the_users_loss_and_not_of_what_carries_its_gradient() -> None:
    bus, heard = EventBus(), list[Any]()
    bus.subscribe(lambda event: heard.append(event.data["metrics"]), TRAINING_MEASURED)
    with ProtocolServer() as server, service_for(server, events=bus) as service:
        training = service.create_lora_training_client("acme/tiny")
        result = training.forward_backward_custom(DATA, squares).result(timeout=30)
    assert heard == [result.metrics]
    assert "surrogate_loss:sum" in heard[0]


def test_both_forms_send_the_same() -> None:
    with ProtocolServer() as server, service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        sync = training.forward_backward_custom(DATA, squares).result(timeout=30)

        async def run() -> ForwardBackwardOutput:
            return await (await training.forward_backward_custom_async(DATA, squares))

        assert asyncio.run(run()).metrics["loss:sum"] == sync.metrics["loss:sum"]
        with pytest.warns(DeprecationWarning, match="loss_type_input"):
            training.forward_backward_custom(DATA, squares, loss_type_input="logprobs").result(30)
        with pytest.raises(ValueError, match="loss_type_input"):
            training.forward_backward_custom(DATA, squares, loss_type_input="x")
    calls = [c.body for c in server.asked("/forward_backward")]
    assert [c["forward_only"] for c in calls] == [True, False] * 3
    assert calls[1]["data"] == calls[3]["data"]


# ---- traced losses


def weighted(logprobs: Any, advantages: Any) -> Any:
    ratio = torch.exp(logprobs - logprobs.detach())
    loss = -(torch.clamp(ratio, 0.8, 1.2) * advantages).sum()
    return loss, {"custom/mean_ratio:mean": ratio.mean(), "custom/tokens:sum": advantages.sum()}


RANKS: Any = {"logprobs": 1, "advantages": 1}


def with_advantages(*values: float) -> Datum:
    return Datum(
        datum(1, 2, 3).model_input,
        {"target_tokens": [2, 3, 0], "advantages": list(values)},
    )


def test_a_handle_runs_here_when_the_server_does_not() -> None:
    data = [with_advantages(1.0, 0.0, 2.0), with_advantages(0.5, 0.5, 0.5)]
    with ProtocolServer() as server, service_for(server) as service:
        handle = service.create_custom_loss(weighted, RANKS).result(timeout=30)
        assert handle.input_names == ("logprobs", "advantages")
        assert handle.loss_id is None
        training = service.create_lora_training_client("acme/tiny")
        result = training.forward_backward_custom(data, handle).result(timeout=30)
        assert result.metrics["loss:sum"] == pytest.approx(-4.5)
        assert result.metrics["custom/tokens:sum"] == pytest.approx(4.5)
        assert result.metrics["custom/mean_ratio:mean"] == pytest.approx(1.0)
        with pytest.raises(ValueError, match="already created"):
            service.create_custom_loss(weighted, RANKS).result(timeout=30)
        with pytest.raises(ValueError, match="needs 'advantages'"):
            training.forward_backward_custom([datum(1, 2)], handle)
    backward = server.asked("/forward_backward")[1].body
    assert backward["data"][0]["inputs"]["weights"] == [1.0, 0.0, 2.0]


def test_a_handle_the_server_runs_is_one_request() -> None:
    with ProtocolServer(custom_loss_server_side=True) as server, service_for(server) as service:
        handle = service.create_custom_loss(weighted, RANKS).result(timeout=30)
        training = service.create_lora_training_client("acme/tiny")
        training.forward_backward_custom([with_advantages(1.0, 1.0, 1.0)], handle).result(30)
    upload = server.asked("/create_custom_loss")[0].body
    assert upload["inputs"][0] == {"name": "logprobs", "rank": 1}
    assert {node["op"] for node in upload["graph"]["nodes"]} >= {"placeholder", "output"}
    (call,) = [c.body for c in server.asked("/forward_backward")]
    assert (call["loss_fn"], call["loss_fn_config"]) == ("custom", {"loss_id": "loss-1"})


def test_a_handle_of_another_session_is_refused() -> None:
    handle = LossHandle("l", declared_inputs(weighted, RANKS), "other", trace(weighted))
    with pytest.raises(ValueError, match="belongs to session other"):
        handle.check_usable([], "mine")


def exotic(logprobs: Any) -> Any:
    chosen = logprobs[..., 1:]
    masked = torch.where(chosen > -float("inf"), chosen, torch.zeros_like(chosen))
    total = torch.sum(masked.to(torch.float32) * 2 + 1, dim=(0,), keepdim=False)
    return total / math.sqrt(2.0), {"custom/x:sum": torch.nn.functional.softplus(masked).sum()}


def attribute(logprobs: Any) -> Any:
    return operator.neg(logprobs.T.sum()).reshape([]), {"custom/n:mean": logprobs.mean()}


@pytest.mark.parametrize(
    ("function", "ranks"),
    [(weighted, RANKS), (exotic, {"logprobs": 1}), (attribute, {"logprobs": 2})],
)
def test_the_uploaded_graph_is_the_official_one(function: Any, ranks: Any) -> None:
    official = pytest.importorskip("tinker.lib.public_interfaces.custom_loss")
    handle = official.trace_loss(function, ranks, "s1")
    ours = LossHandle("l", declared_inputs(function, ranks), "s1", trace(function))
    assert graph_for_wire(ours.graph).model_dump() == official.encode_graph(handle).model_dump()


@pytest.mark.parametrize(
    ("function", "ranks", "says"),
    [
        (lambda x: (x.sum(), {}), {"x": 1}, "first parameter"),
        (lambda logprobs, BAD: (logprobs.sum(), {}), {"logprobs": 1, "BAD": 1}, "lower case"),
        (lambda logprobs, a=1: (logprobs.sum(), {}), {"logprobs": 1, "a": 1}, "plain one"),
        (lambda logprobs, *rest: (logprobs.sum(), {}), {"logprobs": 1, "rest": 1}, "plain one"),
        (lambda logprobs: (logprobs.sum(), {}), {"logprobs": 1, "x": 1}, "input_ranks"),
        (lambda logprobs: (logprobs.sum(), {}), {"logprobs": 0}, "must be 1 or 2"),
    ],
)
def test_signatures_that_cannot_be_uploaded(function: Any, ranks: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        declared_inputs(function, ranks)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda logprobs: logprobs.sum(), r"\(loss, metrics\)"),
        (lambda logprobs: (1.0, {}), "does not depend"),
        (lambda logprobs: (logprobs.sum(), {"bad": logprobs.sum()}), "must look like custom/"),
        (lambda logprobs: (logprobs.sum(), {"custom/a:sum": 1.0}), "does not depend"),
        (lambda logprobs: (logprobs.sum().item(), {}), "item"),
        (lambda logprobs: (logprobs.sum() if logprobs.sum() > 0 else 0, {}), "cannot be traced"),
        (lambda logprobs: (logprobs + torch.ones(3), {}), "outside"),
    ],
)
def test_functions_that_cannot_be_traced(function: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        trace(function)


# ---- regularizers


def test_regularizers_add_their_terms_and_report_them() -> None:
    reference = [-0.2, -0.3, 0.0]
    data = [
        Datum(
            DATA[0].model_input,
            {
                "target_tokens": [2, 3, 0],
                "weights": [1.0, 1.0, 0.0],
                "reference_logprobs": TensorData(reference, "float32"),
            },
        )
    ]
    values = torch.tensor([-0.1, -0.3, -5.0], requires_grad=True)
    loss_fn = regularizers.regularized(
        lambda d, lp: (lp[0].sum() * 0, {"a:sum": 1.0}),
        regularizers.kl_to_reference(2.0),
        regularizers.l2_to_reference(1.0),
        regularizers.entropy_bonus(0.5),
    )
    loss, metrics = loss_fn(data, [values])
    kl = 2.0 * (np.exp(-0.1) + 0.1 - 1) / 2
    assert metrics["regularizer/kl_to_reference:sum"] == pytest.approx(kl, abs=1e-6)
    assert metrics["regularizer/l2_to_reference:sum"] == pytest.approx(0.01 / 2, abs=1e-6)
    assert metrics["regularizer/entropy_bonus:sum"] == pytest.approx(-0.1, abs=1e-6)
    assert metrics["a:sum"] == 1.0
    assert float(loss.detach()) == pytest.approx(sum(metrics.values()) - 1.0, abs=1e-6)
    loss.backward()
    assert values.grad[2] == 0, "a token without weight is not regularized"


def test_regularizers_say_what_they_lack() -> None:
    term = regularizers.kl_to_reference(1.0)
    with pytest.raises(ValueError, match="reference_logprobs"):
        term([DATA[0]], [torch.zeros(3)])
    with pytest.raises(ValueError, match="coefficient"):
        regularizers.entropy_bonus(-1.0)
    with pytest.raises(ValueError, match="at least one"):
        regularizers.regularized(squares)


# ---- recovery


def test_a_lost_run_goes_on_from_its_last_checkpoint() -> None:
    from support.socket_server import Answer, Reply, status
    from tinkex.client.recovery import RecoveryPolicy, recover, run_with_recovery

    with ProtocolServer() as server, service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        assert recover(service, training) is training
        corrupted = b'{"training_run_id":"s1:train:0","base_model":"acme/tiny","model_owner":"me",\
"is_lora":true,"corrupted":true,"last_request_time":"2026-01-01T00:00:00Z"}'
        server.fail("/s1:train:0", Answer(Reply(200, corrupted)))
        recovered = recover(service, training, policy=RecoveryPolicy(with_optimizer=False))
        assert recovered.model_id == "s1:train:1"
        load = server.asked("/load_weights")[-1].body
        assert (load["path"], load["optimizer"]) == ("tinker://s1:train:0/weights/one", False)

        server.fail("/retrieve_future", status(410), when=b'"f')
        with service.config.events.capture("tinkex.recovery") as seen:
            client, result = run_with_recovery(
                service,
                recovered,
                lambda t: t.optim_step(tinkex.AdamParams()).result(timeout=30).metrics,
            )
        assert result == {"grad_norm": 0.5}
        assert client.model_id == "s1:train:2"
        assert server.asked("/load_weights")[-1].body["optimizer"] is True
        assert [e.name.rpartition(".")[2] for e in seen] == ["started", "completed"]


def test_without_a_checkpoint_recovery_says_so() -> None:
    from support.socket_server import status
    from tinkex.client.recovery import NoCheckpointError, RecoveryPolicy, recover

    with ProtocolServer() as server, service_for(server) as service:
        training = service.create_lora_training_client("acme/tiny")
        server.fail("/s1:train:0", status(404))
        server.fail("/checkpoints", status(404))
        with pytest.raises(NoCheckpointError, match="save_state"):
            recover(service, training)
        with pytest.raises(ValueError, match="attempts"):
            RecoveryPolicy(attempts=0)
