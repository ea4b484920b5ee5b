"""Optimizer families, checkpoint paths and the lenient answers."""

import pytest
from pydantic import ValidationError

from tinkex.types import (
    AdamOptimizerConfig,
    AdamParams,
    DimuonOptimizerConfig,
    DimuonParams,
    GetInfoResponse,
    LoraConfig,
    OptimParamsBase,
    OptimStepRequest,
    ParsedCheckpointTinkerPath,
    SaveWeightsForSamplerResponse,
    SaveWeightsResponse,
    UntypedAPIFuture,
)


def step(**arguments: object) -> OptimStepRequest:
    return OptimStepRequest.model_validate({"model_id": "m", "seq_id": 2, **arguments})


def test_adam_travels_under_its_own_name_and_others_under_theirs() -> None:
    adam = step(optim_params=AdamParams(learning_rate=0.5)).model_dump()
    assert list(adam) == ["model_id", "seq_id", "type", "adam_params"]
    assert adam["adam_params"]["learning_rate"] == 0.5
    dimuon = step(optim_params=DimuonParams(learning_rate=1)).model_dump()
    assert dimuon["optimizer_params"] == {
        "type": "dimuon",
        "learning_rate": 1.0,
        "grad_clip_norm": 0.0,
        "beta1": 0.9,
    }


@pytest.mark.parametrize("name", ["optim_params", "adam_params", "optimizer_params"])
def test_every_name_of_the_parameters_is_read(name: str) -> None:
    assert step(**{name: {"learning_rate": 1}}).optim_params == AdamParams(learning_rate=1)


def test_unknown_families_travel_unchanged() -> None:
    request = step(optimizer_params={"type": "lion", "rate": 3})
    assert isinstance(request.optim_params, OptimParamsBase)
    assert request.model_dump()["optimizer_params"] == {"type": "lion", "rate": 3}


def test_known_families_are_checked() -> None:
    assert isinstance(
        step(optimizer_params={"type": "dimuon", "learning_rate": 1}).optim_params, DimuonParams
    )
    for bad in (
        {"optimizer_params": {"type": "dimuon", "learning_rate": -1}},
        {"adam_params": {"learning_rate": float("nan")}},
        {"adam_params": {"lr": 1}},
        {},
    ):
        with pytest.raises(ValidationError):
            step(**bad)


def test_answers_survive_fields_and_families_of_newer_servers() -> None:
    answer = {"model_id": "m", "model_data": {"new": 1}, "newer": 2}
    assert GetInfoResponse.model_validate(answer).optimizer_config == AdamOptimizerConfig()
    dimuon = GetInfoResponse.model_validate(
        {**answer, "optimizer_config": {"type": "dimuon", "version": 1}}
    )
    assert dimuon.optimizer_config == DimuonOptimizerConfig()
    newer = GetInfoResponse.model_validate(
        {**answer, "optimizer_config": {"type": "adamw", "amsgrad": True}}
    )
    assert newer.optimizer_config.model_dump() == {"type": "adamw", "amsgrad": True}
    assert UntypedAPIFuture.model_validate({"request_id": "r", "extra": 1}).request_id == "r"


def test_a_rank_is_at_least_one() -> None:
    with pytest.raises(ValidationError, match="rank"):
        LoraConfig(rank=0)


def test_a_checkpoint_path_has_three_parts() -> None:
    parsed = ParsedCheckpointTinkerPath.from_tinker_path("tinker://s:train:0/weights/a")
    assert (parsed.training_run_id, parsed.checkpoint_type) == ("s:train:0", "training")
    assert parsed.checkpoint_id == "weights/a"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "xx",
        "tinker://a/b",
        "tinker://a/other/b",
        "tinker://a/weights/b/c",
        "tinker:///weights/x",
    ],
)
def test_anything_else_is_an_invalid_path(path: str) -> None:
    with pytest.raises(ValueError, match="Invalid tinker path"):
        ParsedCheckpointTinkerPath.from_tinker_path(path)


def test_console_links_escape_their_parts() -> None:
    saved = SaveWeightsResponse(path="tinker://a:train:0/weights/ü?")
    assert saved.get_console_url().endswith("/checkpoints/a%3Atrain%3A0/weights%2F%C3%BC%3F")
    sampler = SaveWeightsForSamplerResponse(path="tinker://a/sampler_weights/b")
    assert sampler.get_playground_url().endswith(
        "/playground?mode=checkpoint&checkpoint=tinker%3A%2F%2Fa%2Fsampler_weights%2Fb"
    )
