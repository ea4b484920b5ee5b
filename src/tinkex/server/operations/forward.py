"""forward_backward and forward: decoded once, in a thread, when its turn comes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from functools import partial

from tinkex.engine.messages import CustomLoss, ForwardBackward, ForwardBackwardResult, Result
from tinkex.server.engines.model_names import context_limit
from tinkex.server.operations.base import Around, Conclusion, OperationKind, Prepared
from tinkex.server.operations.custom_losses import Losses
from tinkex.server.operations.log import Entry
from tinkex.server.operations.route_replay import encoded_routes, with_routes
from tinkex.server.operations.run import Run
from tinkex.server.operations.sampled_data import signals
from tinkex.server.operations.sampler_gap import SamplerGap, measure
from tinkex.server.promises import Outcome
from tinkex.server.protocol.forward_codec import ForwardRequest, decode, encode_forward
from tinkex.server.refusals import Refusal
from tinkex.server.storage.database import runs as runs_table

_SMALL_BYTES = 512 * 1024
_FEW_DATUMS = 128
_FEW_TOKENS = 16_384
_ARRAYS = 16
"""Inputs and token lists per datum, on average in a call with the most datums: room for a custom
loss's inputs."""


async def _prepare(around: Around, run: Run, entry: Entry, body: bytes) -> Prepared:
    request = entry.content or await around.reading.run(run.tenant, partial(decode, body))
    if isinstance(request, Refusal):
        raise request
    assert isinstance(request, ForwardRequest)
    _check_number(around, run, request)
    model = around.engines.model_of(run.row.base_model)
    request = await with_routes(request, entry, around.routes, run.tenant, model)
    repeated = entry.kind.is_repeated and not entry.replay
    routes = await encoded_routes(request) if repeated else None
    command = ForwardBackward(
        op=entry.request_id,
        run=run.model_id,
        data=request.data,
        loss_fn=request.loss_fn,
        loss_config=request.loss_config,
        forward_only=request.forward_only,
        custom=await _custom_loss(around.losses, run, request),
        context=context_limit(run.row.base_model),
    )
    counts = run.gaps.call()

    async def conclude(result: Result) -> Conclusion:
        assert isinstance(result, ForwardBackwardResult)
        gap: SamplerGap | None = None
        if counts is not None and any("logprobs" in datum.inputs for datum in request.data):
            gap = await asyncio.to_thread(measure, request.data, result.outputs)
            run.gaps.measured(counts, gap)
        outcome = Outcome("protobuf", await _encoded(result))
        if request.forward_only:
            return Conclusion(outcome)
        tokens, loss = request.tokens, loss_per_token(result.metrics)
        trained = (lambda db: runs_table.trained(db, run.model_id, tokens, loss),)
        seen = {**result.metrics, **await _signals(request), **_shown(gap)}
        example = next(zip(request.data, result.outputs, strict=True), None)
        return Conclusion(outcome, trained, seen, datums=len(request.data), example=example)

    return Prepared((command,), conclude, request.tokens, routes=routes)


FORWARD = OperationKind(
    name="forward", chunked=True, pipelined=True, beside_saves=True, prepare=_prepare
)
FORWARD_BACKWARD = OperationKind(
    name="forward_backward",
    changes="gradient",
    chunked=True,
    pipelined=True,
    beside_saves=True,
    prepare=_prepare,
)


async def _custom_loss(losses: Losses, run: Run, request: ForwardRequest) -> CustomLoss | None:
    if request.loss_fn != "custom":
        return None
    loss_id = request.loss_config.get("loss_id")
    if request.loss_config.keys() != {"loss_id"} or not isinstance(loss_id, str):
        raise Refusal("loss_fn_config: a custom loss takes one setting, loss_id, a text")
    return await losses.find(run.row.session_id, loss_id)


def loss_per_token(metrics: Mapping[str, float]) -> float | None:
    """The figure that people compare between steps; None if it is not a number."""
    tokens = metrics.get("tokens:sum", 0.0)
    loss = metrics["loss:sum"] / tokens if tokens else math.nan
    return loss if math.isfinite(loss) else None


def _check_number(around: Around, run: Run, request: ForwardRequest) -> None:
    """Refuse too many datums. The engine would too, but only after reading all of them: seconds in
    which it serves nobody."""
    facts = around.engines.get(run.row.base_model).facts
    most = None if facts is None else facts.max_data
    if most is None:
        return
    if len(request.data) > most:
        raise Refusal(f"data: {len(request.data)} datums are over the limit of {most}")
    arrays = sum(1 + len(datum.inputs) for datum in request.data)
    if arrays > _ARRAYS * most:
        raise Refusal(
            f"data: {arrays} inputs and token lists are over the limit of {_ARRAYS * most}: send "
            "fewer datums at once, or fewer loss_fn_inputs"
        )


async def _signals(request: ForwardRequest) -> Mapping[str, float]:
    """Statistics of reinforcement data; only a part of it is looked at here on the loop."""
    if not any("logprobs" in datum.inputs for datum in request.data):
        return {}
    if len(request.data) <= _FEW_DATUMS and request.tokens <= _FEW_TOKENS:
        return signals(request.data)
    return await asyncio.to_thread(signals, request.data)


def _shown(gap: SamplerGap | None) -> Mapping[str, float]:
    return {} if gap is None else {"sampler_gap:mean": gap.mean, "sampler_gap_max:max": gap.max}


async def _encoded(result: ForwardBackwardResult) -> bytes:
    """The result's bytes; copying few is quicker than a change of threads."""
    size = sum(array.nbytes for output in result.outputs for array in output.values())
    if size <= _SMALL_BYTES and len(result.outputs) <= _FEW_DATUMS:
        return encode_forward(result)
    return await asyncio.to_thread(encode_forward, result)
