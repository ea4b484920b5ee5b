"""Creates a run on the server: with fresh adapters, or from saved weights."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinkex.client import arguments
from tinkex.client.api import call_policies
from tinkex.client.settings.queue_state import TRAINING_RATE_REASON, QueueReporter
from tinkex.client.training.client import TrainingClient
from tinkex.client.training.run import json_kind
from tinkex.types import (
    CreateModelRequest,
    CreateModelResponse,
    LoadWeightsRequest,
    LoadWeightsResponse,
    LoraConfig,
    OptimizerConfig,
    UntypedAPIFuture,
    WeightsInfoResponse,
)
from tinkex.wire import routes
from tinkex.wire.json import encode_request

if TYPE_CHECKING:
    from tinkex.client.session.holder import InternalClientHolder


@dataclass(frozen=True)
class State:
    """Saved weights to start from."""

    path: str  # `tinker://` of the checkpoint
    base_model: str | None  # None: that of the checkpoint
    user_metadata: dict[str, str] | None  # of the new run
    weights_access_token: str | None  # for another's checkpoint
    optimizer: OptimizerConfig | None  # its family, if one was named
    with_optimizer: bool  # go on exactly where it stopped


async def create_model(
    holder: InternalClientHolder,
    base_model: str,
    lora: LoraConfig,
    user_metadata: dict[str, str] | None,
    optimizer: OptimizerConfig,
) -> TrainingClient:
    """A run with fresh adapters; returns when the server has made it."""
    await holder.ready()
    number = next(holder.model_numbers)
    request = CreateModelRequest(
        session_id=holder.session_id,
        model_seq_id=number,
        base_model=base_model,
        user_metadata=user_metadata,
        lora_config=lora,
        optimizer_config=optimizer,
    )
    promise = await holder.api.post(
        routes.CREATE_MODEL, encode_request(request), UntypedAPIFuture, call_policies.CREATE_MODEL
    )
    created = await holder.poller.result(
        promise.request_id,
        json_kind("CreateModel", CreateModelResponse),
        observer=_reporter(holder, promise.model_id or base_model),
    )
    return TrainingClient(holder, number, created.model_id)


async def from_state(
    holder: InternalClientHolder,
    state: State,
    weights_info: Callable[[str, str | None], Awaitable[WeightsInfoResponse]],
) -> TrainingClient:
    """A run made from a checkpoint; ``weights_info`` asks how that was made, by path and token."""
    arguments.check_model_path(state.path)
    arguments.check_metadata(state.user_metadata)
    await holder.ready()
    if holder.flags.create_model_via_load_weights:
        return await _via_load_weights(holder, state)
    info = await weights_info(state.path, state.weights_access_token)
    fresh = arguments.as_optimizer(state.optimizer)
    client = await create_model(
        holder,
        state.base_model or info.base_model,
        _lora(state.path, info),
        state.user_metadata,
        info.optimizer_config if state.with_optimizer else fresh,
    )
    await client._load_operation(
        state.path, state.weights_access_token, optimizer=state.with_optimizer
    )
    return client


async def _via_load_weights(holder: InternalClientHolder, state: State) -> TrainingClient:
    """One request instead of three, on servers that offer it."""
    number = next(holder.model_numbers)
    request = LoadWeightsRequest(
        session_id=holder.session_id,
        model_seq_id=number,
        base_model=state.base_model,
        user_metadata=state.user_metadata,
        path=state.path,
        optimizer=state.with_optimizer,
        optimizer_config=state.optimizer and arguments.as_optimizer(state.optimizer),
        weights_access_token=state.weights_access_token,
    )
    promise = await holder.api.post(
        routes.LOAD_WEIGHTS, encode_request(request), UntypedAPIFuture, call_policies.TRAINING
    )
    model_id = f"{holder.session_id}:train:{number}"
    await holder.poller.result(
        promise.request_id,
        json_kind("LoadWeights", LoadWeightsResponse),
        observer=_reporter(holder, model_id),
    )
    return TrainingClient(holder, number, model_id)


def _lora(path: str, info: WeightsInfoResponse) -> LoraConfig:
    """The adapters a checkpoint was made with."""
    if not info.is_lora or info.lora_rank is None:
        raise ValueError(f"path: {path} is not a LoRA checkpoint; only those can be trained on")
    return LoraConfig(
        rank=info.lora_rank,
        train_unembed=_default_true(info.train_unembed),
        train_mlp=_default_true(info.train_mlp),
        train_attn=_default_true(info.train_attn),
    )


def _reporter(holder: InternalClientHolder, subject: str) -> QueueReporter:
    return QueueReporter(f"Model creation for {subject}", TRAINING_RATE_REASON, holder.config)


def _default_true(flag: bool | None) -> bool:
    return True if flag is None else flag
