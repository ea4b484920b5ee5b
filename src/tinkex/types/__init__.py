"""The values users hold: prompts, tensors, datums, requests and answers.

Importing this package imports nothing else: a name is loaded when it is first read, so that
`import tinkex` stays free of numpy and pydantic.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinkex.types.billing import *
    from tinkex.types.checkpoints import *
    from tinkex.types.datum import *
    from tinkex.types.futures import *
    from tinkex.types.model_input import *
    from tinkex.types.models import *
    from tinkex.types.optimizer import *
    from tinkex.types.provenance import *
    from tinkex.types.sampling import *
    from tinkex.types.service import *
    from tinkex.types.sessions import *
    from tinkex.types.telemetry import *
    from tinkex.types.tensor_data import *
    from tinkex.types.tinker_path import *

_NAMES = {
    "billing": (
        "AuditLogEntry AuditLogResponse BillingEventInfo BillingUsageEvent "
        "BillingUsageResponse BillingUsageSession CheckpointBillingEvent "
        "CurrentCheckpointStorageUsageItem CurrentCheckpointStorageUsageResponse "
        "GetBillingUsageRequest GetCurrentCheckpointStorageUsageRequest "
        "SamplingPrefillBillingEvent SamplingSampleBillingEvent StorageBillingEvent "
        "TrainingBillingEvent"
    ),
    "checkpoints": (
        "Checkpoint CheckpointsListResponse CopyWeightsRequest CopyWeightsResponse Cursor "
        "ExternalWeightsUrlsResponse LoadWeightsRequest LoadWeightsResponse "
        "ParsedCheckpointTinkerPath SaveWeightsExternalRequest SaveWeightsExternalResponse "
        "SaveWeightsExternalResponseInternal SaveWeightsForSamplerRequest "
        "SaveWeightsForSamplerResponse SaveWeightsForSamplerResponseInternal "
        "SamplerGap SaveWeightsRequest SaveWeightsResponse TrainingRun TrainingRunsResponse "
        "WeightsInfoResponse"
    ),
    "datum": (
        "Datum ForwardBackwardInput ForwardBackwardOutput ForwardBackwardRequest "
        "ForwardRequest LossFnInput LossFnInputs LossFnOutput LossFnType"
    ),
    "futures": (
        "FutureCompletion FutureFailed FutureFinished FutureRetrieveRequest "
        "FutureRetrieveResponse FuturesRetrieveRequest FuturesRetrieveResponse "
        "RequestErrorCategory RequestFailedResponse RequestID SamplingSessionFuturesTarget "
        "TryAgainResponse UntypedAPIFuture"
    ),
    "model_input": (
        "DmelChunk EncodedTextChunk ImageAssetPointerChunk ImageChunk ModelInput ModelInputChunk"
    ),
    "models": (
        "CreateCustomLossRequest CreateCustomLossResponse CreateModelRequest "
        "CreateModelResponse CustomLossGraph CustomLossInput CustomLossInputRank "
        "CustomLossNode CustomLossNodeOp GetInfoRequest GetInfoResponse LoraConfig ModelData "
        "ModelID OptimStepRequest OptimStepResponse UnloadModelRequest UnloadModelResponse"
    ),
    "optimizer": (
        "AdamOptimizerConfig AdamParams DimuonOptimizerConfig DimuonParams OptimParams "
        "OptimParamsBase OptimizerConfig OptimizerConfigBase"
    ),
    "provenance": "PromptProvenanceSpan ProvenanceSpans SampledProvenanceSpan",
    "sampling": (
        "CreateSamplingSessionRequest CreateSamplingSessionResponse GetSamplerResponse "
        "JoinSamplingSessionRequest JoinSamplingSessionResponse PromptAltTokens SampleRequest "
        "SampleResponse SampledSequence SampledWeights SamplingParams StopReason TopkLogprobs"
    ),
    "service": (
        "AuthTokenResponse ClientConfigRequest ClientConfigResponse "
        "ClientDynamicConfigResponse GetServerCapabilitiesResponse HealthResponse "
        "SupportedModel WhoamiResponse"
    ),
    "sessions": (
        "AccessibleSearchOwner ActiveSessionStatusQuery CancelledSessionStatusQuery "
        "ClientFinishedSessionStatusQuery ClientSessionFinishErrored "
        "ClientSessionFinishInterrupted ClientSessionFinishReason "
        "ClientSessionFinishReasonType ClientSessionFinishSuccess ClientSessionFinished "
        "CreateSessionRequest CreateSessionResponse FailedSessionStatusQuery "
        "GetSessionResponse ListSessionsResponse OwnSearchOwner SearchOwner SessionActive "
        "SessionCancelled SessionFailed SessionFailedReason SessionFailedRequestReason "
        "SessionFailedSamplingSessionReason SessionFailedTrainingRunReason "
        "SessionHeartbeatRequest SessionHeartbeatResponse SessionSearchCursor "
        "SessionSearchRequest SessionSearchResponse SessionStatus SessionStatusQuery "
        "SessionSummary UserSearchOwner"
    ),
    "telemetry": (
        "EventType GenericEvent SessionEndEvent SessionStartEvent Severity TelemetryBatch "
        "TelemetryEvent TelemetryResponse TelemetrySendRequest UnhandledExceptionEvent"
    ),
    "tensor_data": "TensorData TensorDtype",
    "tinker_path": "CheckpointType",
}
"""Module -> the names it defines; a test keeps this equal to what the modules hold."""

_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"tinkex.types.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    return _submodule(name)


def _submodule(name: str) -> Any:
    """`tinkex.types.tensor_data` works without importing that module first."""
    full = f"{__name__}.{name}"
    try:
        if not name.startswith("_"):
            return import_module(full)
    except ModuleNotFoundError as error:
        if error.name != full:
            raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
