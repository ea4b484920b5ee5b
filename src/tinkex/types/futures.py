"""Promises: what a submission answers, and what asking for its result can answer."""

from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from tinkex.types.checkpoints import (
    LoadWeightsResponse,
    SaveWeightsExternalResponse,
    SaveWeightsForSamplerResponse,
    SaveWeightsResponse,
)
from tinkex.types.datum import ForwardBackwardOutput
from tinkex.types.models import CreateModelResponse, OptimStepResponse, UnloadModelResponse
from tinkex.types.strictness import Lenient, Strict

RequestID: TypeAlias = str
QueueState: TypeAlias = Literal["active", "paused_capacity", "paused_rate_limit"]


class UntypedAPIFuture(Lenient):
    """What a submission answers: the id to ask for the result with."""

    request_id: str
    model_id: str | None = None
    sample_sequence_ids: list[str] | None = None


class FutureRetrieveRequest(Strict):
    """Asks for the result of one request."""

    request_id: str
    allow_metadata_only: bool = False


class TryAgainResponse(Lenient):
    """The result is not there yet, and why."""

    type: Literal["try_again"] = "try_again"
    request_id: str
    queue_state: QueueState


class CompleteMetadata(Lenient):
    """The result is there, and so large that its client may want to make room for it first."""

    status: Literal["complete_metadata"]
    response_payload_size: int


class RequestErrorCategory(StrEnum):
    """Whose fault a failed request was."""

    Unknown = "unknown"
    Server = "server"
    User = "user"


class RequestFailedResponse(Lenient):
    """Why a request failed, and whose fault it is."""

    error: str
    category: RequestErrorCategory


FutureRetrieveResponse: TypeAlias = (
    TryAgainResponse
    | ForwardBackwardOutput
    | OptimStepResponse
    | SaveWeightsResponse
    | LoadWeightsResponse
    | SaveWeightsForSamplerResponse
    | SaveWeightsExternalResponse
    | CreateModelResponse
    | UnloadModelResponse
    | RequestFailedResponse
)


class SamplingSessionFuturesTarget(Strict):
    """The sampler and the process whose requests are meant."""

    type: Literal["sampling_session"] = "sampling_session"
    sampling_session_id: str
    cloned_sampler_id: int = 0


class FuturesRetrieveRequest(Strict):
    """Asks which requests of a sampler have ended."""

    target: SamplingSessionFuturesTarget
    prev_cursor: int = 0
    timeout: float | None = None
    retrieved_request_ids: list[str] = Field(default=[])


class FutureFinished(Lenient):
    """A request whose result can be fetched, and how large that is."""

    state: Literal["finished"] = "finished"
    request_id: str
    response_payload_uncompressed_size: int | None = None


class FutureFailed(Lenient):
    """A request that ended with an error."""

    state: Literal["failed"] = "failed"
    request_id: str


FutureCompletion: TypeAlias = Annotated[FutureFinished | FutureFailed, Field(discriminator="state")]


class FuturesRetrieveResponse(Lenient):
    """What has ended since the last poll."""

    completions: list[FutureCompletion]
    cursor: int
