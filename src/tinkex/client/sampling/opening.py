"""Opens a sampler on the server: of saved weights, or of a base model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinkex.client.api import call_policies
from tinkex.client.sampling.client import SamplingClient
from tinkex.types import CreateSamplingSessionRequest, CreateSamplingSessionResponse
from tinkex.wire import routes
from tinkex.wire.json import encode_request

if TYPE_CHECKING:
    from tinkex.client.api.retry import RetryConfig
    from tinkex.client.session.holder import InternalClientHolder


async def open_sampler(
    holder: InternalClientHolder,
    *,
    model_path: str | None,
    base_model: str | None,
    sampling_session_id: str | None = None,
    retry_config: RetryConfig | None,
    record_stability_info: bool,
) -> SamplingClient:
    """Create a sampling session and a client for it."""
    await holder.ready()
    if sampling_session_id is None:
        request = CreateSamplingSessionRequest(
            session_id=holder.session_id,
            sampling_session_seq_id=next(holder.sampler_numbers),
            model_path=model_path,
            base_model=base_model,
        )
        answer = await holder.api.post(
            routes.CREATE_SAMPLING_SESSION,
            encode_request(request),
            CreateSamplingSessionResponse,
            call_policies.SESSION,
        )
        sampling_session_id = answer.sampling_session_id
    return SamplingClient(
        holder,
        sampling_session_id=sampling_session_id,
        retry_config=retry_config,
        record_stability_info=record_stability_info,
    )
