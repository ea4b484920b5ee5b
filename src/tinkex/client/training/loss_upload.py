"""A traced loss becomes known to a session and, where the server runs losses, to the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinkex.client.api import call_policies
from tinkex.client.training.custom_loss import LossHandle
from tinkex.client.training.run import json_kind
from tinkex.types import CreateCustomLossRequest, CreateCustomLossResponse, UntypedAPIFuture
from tinkex.wire import routes
from tinkex.wire.json import encode_request

if TYPE_CHECKING:
    from tinkex.client.session.holder import InternalClientHolder


async def register_loss(
    holder: InternalClientHolder, name: str, inputs: tuple[Any, ...], graph: Any
) -> LossHandle:
    """A handle of a loss that is new to this session."""
    await holder.ready()
    handle = LossHandle(name, inputs, holder.session_id, graph)
    if handle.key in holder.custom_loss_keys:
        raise ValueError(f"fn: the loss {name!r} was already created in this session; reuse it")
    holder.custom_loss_keys.add(handle.key)
    if not holder.flags.custom_loss_server_side:
        return handle
    try:
        loss_id = await _upload(holder, handle)
    except BaseException:
        holder.custom_loss_keys.discard(handle.key)
        raise
    return LossHandle(name, inputs, holder.session_id, graph, loss_id)


async def _upload(holder: InternalClientHolder, handle: LossHandle) -> str:
    from tinkex.client.training.loss_tracing import graph_for_wire

    request = CreateCustomLossRequest(
        session_id=holder.session_id,
        custom_loss_seq_id=next(holder.custom_loss_numbers),
        name=handle.name,
        inputs=list(handle.inputs),
        graph=graph_for_wire(handle.graph),
    )
    promise = await holder.api.post(
        routes.CREATE_CUSTOM_LOSS, encode_request(request), UntypedAPIFuture, call_policies.TRAINING
    )
    created = await holder.poller.result(
        promise.request_id, json_kind("CreateCustomLoss", CreateCustomLossResponse)
    )
    return created.loss_id
