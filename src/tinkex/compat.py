"""The module tree of the official package, made from one table instead of a hundred files.

`tinkex.lib.public_interfaces.rest_client`, `tinkex.types.image_chunk` and their like exist only as
rows here. Importing one makes an empty module whose names are the objects of our own modules,
looked up when they are first read. A file of the same name always wins over a row.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False  # importing `typing` would take longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

_CLIENTS = {
    "service_client": "client.service:ServiceClient",
    "training_client": "client.training.client:TrainingClient",
    "sampling_client": "client.sampling.client:SamplingClient",
    "rest_client": "client.rest:RestClient",
    "admin_client": "client.admin:AdminClient",
    "api_future": (
        "client.concurrency.futures:APIFuture client.concurrency.futures:AwaitableConcurrentFuture"
    ),
    "custom_loss": (
        "client.training.custom_loss:LossHandle client.training.custom_loss:PerDatumLossFn"
    ),
}

_ERRORS = (
    "TinkerError APIError APIResponseValidationError APIStatusError APIConnectionError "
    "APITimeoutError BadRequestError AuthenticationError BillingError PermissionDeniedError "
    "NotFoundError ConflictError UnprocessableEntityError RateLimitError InternalServerError "
    "RequestFailedError"
)

_CREDENTIALS = (
    "ApiKeyOrgDetails ApiKeyUserDetails ApiKeyDetails ManualKey GeneratedKey StoredCredentialsV1 "
    "default_credentials_path CredentialStore JsonCredentialStore"
)

_TYPES_NAMED_AFTER_THEIR_MODULE = (
    "audit_log_entry audit_log_response auth_token_response checkpoints_list_response "
    "client_config_request client_config_response client_dynamic_config_response "
    "copy_weights_request copy_weights_response create_custom_loss_request "
    "create_custom_loss_response create_model_request create_model_response "
    "create_sampling_session_request create_sampling_session_response create_session_request "
    "create_session_response cursor dmel_chunk encoded_text_chunk event_type "
    "external_weights_urls_response forward_backward_input forward_backward_output "
    "forward_backward_request forward_request future_retrieve_request future_retrieve_response "
    "futures_retrieve_response generic_event get_info_request get_sampler_response "
    "get_session_response health_response image_asset_pointer_chunk image_chunk "
    "join_sampling_session_request join_sampling_session_response list_sessions_response "
    "load_weights_request load_weights_response lora_config loss_fn_inputs loss_fn_output "
    "loss_fn_type model_input_chunk optim_step_response prompt_alt_tokens request_error_category "
    "request_failed_response sample_request sample_response sampled_sequence sampling_params "
    "save_weights_external_request save_weights_for_sampler_request save_weights_request "
    "save_weights_response session_end_event session_heartbeat_request session_heartbeat_response "
    "session_search_cursor session_search_request session_search_response session_start_event "
    "session_summary severity stop_reason telemetry_batch telemetry_event telemetry_response "
    "telemetry_send_request tensor_dtype topk_logprobs training_run training_runs_response "
    "try_again_response unhandled_exception_event unload_model_request unload_model_response "
    "weights_info_response whoami_response"
)

_OTHER_TYPES = {
    "billing_usage_request": "GetBillingUsageRequest",
    "billing_usage_response": (
        "TrainingBillingEvent SamplingPrefillBillingEvent SamplingSampleBillingEvent "
        "CheckpointBillingEvent StorageBillingEvent BillingEventInfo BillingUsageEvent "
        "BillingUsageSession BillingUsageResponse"
    ),
    "checkpoint": "Checkpoint CheckpointType ParsedCheckpointTinkerPath",
    "current_checkpoint_storage_usage_request": "GetCurrentCheckpointStorageUsageRequest",
    "current_checkpoint_storage_usage_response": (
        "CurrentCheckpointStorageUsageItem CurrentCheckpointStorageUsageResponse"
    ),
    "custom_loss_graph": "CustomLossGraph CustomLossNode CustomLossNodeOp",
    "custom_loss_input": "CustomLossInput CustomLossInputRank",
    "future_completion": "FutureCompletion FutureFinished FutureFailed",
    "futures_retrieve_request": "FuturesRetrieveRequest SamplingSessionFuturesTarget",
    "get_info_response": "GetInfoResponse ModelData",
    "get_server_capabilities_response": "GetServerCapabilitiesResponse SupportedModel",
    "model_id": "ModelID",
    "optim_step_request": "OptimStepRequest AdamParams",
    "provenance_spans": "PromptProvenanceSpan SampledProvenanceSpan ProvenanceSpans",
    "request_id": "RequestID",
    "save_weights_external_response": (
        "SaveWeightsExternalResponse SaveWeightsExternalResponseInternal"
    ),
    "save_weights_for_sampler_response": (
        "SaveWeightsForSamplerResponse SaveWeightsForSamplerResponseInternal"
    ),
    "search_owner": "SearchOwner OwnSearchOwner AccessibleSearchOwner UserSearchOwner",
    "session_status": (
        "SessionFailedRequestReason SessionFailedTrainingRunReason "
        "SessionFailedSamplingSessionReason SessionFailedReason SessionFailed SessionCancelled "
        "ClientSessionFinishSuccess ClientSessionFinishErrored ClientSessionFinishInterrupted "
        "ClientSessionFinishReason ClientSessionFinished SessionActive SessionStatus"
    ),
    "session_status_query": (
        "ClientSessionFinishReasonType ActiveSessionStatusQuery CancelledSessionStatusQuery "
        "FailedSessionStatusQuery ClientFinishedSessionStatusQuery SessionStatusQuery"
    ),
    "shared": "UntypedAPIFuture",
    "shared.untyped_api_future": "UntypedAPIFuture",
}


def _from(home: str, names: str) -> str:
    return " ".join(f"{home}:{name}" for name in names.split())


def _camel(snake: str) -> str:
    return "".join(word.capitalize() for word in snake.split("_"))


_MODULES: dict[str, str] = {
    "auth": _from(
        "client.auth", "get_tinker_token tinker_has_credentials raise_if_tinker_not_accessible"
    ),
    "lib": "",
    "lib.public_interfaces": " ".join(_CLIENTS.values()),
    **{f"lib.public_interfaces.{module}": names for module, names in _CLIENTS.items()},
    "lib.retry_handler": _from(
        "client.api.retry", "RetryConfig RetryHandler is_retryable_status_code"
    ),
    "lib.retryable_exception": "client.errors:RetryableException",
    "lib.api_future_impl": _from("client.settings.queue_state", "QueueState QueueStateObserver"),
    "lib.experimental": "client.errors:ExperimentalWarning",
    "lib.telemetry": "client.api.telemetry:Telemetry",
    "lib.credentials": _from("client.settings.credentials", _CREDENTIALS),
    "lib.internal_client_holder": "client.session.holder:InternalClientHolder",
    "_exceptions": _from("client.errors", _ERRORS),
    "_version": ":__title__ :__version__",
    "_types": " ".join(
        (
            _from("sentinels", "NoneType NotGiven NOT_GIVEN Omit"),
            _from("client.settings.config", "Timeout RequestOptions"),
        )
    ),
    "resources": "",
    **{
        f"types.{module}": f"types:{_camel(module)}"
        for module in _TYPES_NAMED_AFTER_THEIR_MODULE.split()
    },
    **{f"types.{module}": _from("types", names) for module, names in _OTHER_TYPES.items()},
}
"""Module of the official tree -> where its names live here, as `module:name` pairs. No module means
the package itself."""


def module_names() -> list[str]:
    """Every module of the table, as a full name."""
    return [f"tinkex.{module}" for module in _MODULES]


def is_module(fullname: str) -> bool:
    return fullname.removeprefix("tinkex.") in _MODULES and fullname.startswith("tinkex.")


def install() -> None:
    """Let the import system find the table's modules, after everything else was tried."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


class _Finder:
    """Finds a table row as a module, and fills it with lazily read names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not is_module(fullname):
            return None
        has_children = any(other.startswith(f"{fullname}.") for other in module_names())
        return ModuleSpec(fullname, self, is_package=has_children)  # type: ignore[arg-type]  # a loader by its methods

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        pairs = (pair.split(":") for pair in _MODULES[module.__name__[7:]].split())
        homes = {name: home for home, name in pairs}
        module.__doc__ = f"Names of tinkex under the official path {module.__name__}."
        module.__dict__["__all__"] = list(homes)
        module.__dict__["__getattr__"] = lambda name: _read(module, homes, name)
        module.__dict__["__dir__"] = lambda: sorted({*module.__dict__, *homes})


def _read(module: ModuleType, homes: dict[str, str], name: str) -> Any:
    if name in homes:
        value = _at(homes[name], name)
    elif is_module(f"{module.__name__}.{name}"):
        value = import_module(f"{module.__name__}.{name}")
    elif module.__name__.startswith("tinkex.types.") and name[:1].isupper():
        value = _at("types", name)  # a name that module only used
    elif module.__name__.startswith("tinkex.lib.") and (home := _home_in_lib(name)) is not None:
        value = _at(home, name)  # the same: programs import RetryConfig from where it is used
    else:
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
    module.__dict__[name] = value
    return value


def _at(home: str, name: str) -> Any:
    return getattr(import_module(f"tinkex.{home}".rstrip(".")), name)


def _home_in_lib(name: str) -> str | None:
    """Where an object lives that any module of `lib` offers."""
    rows = (row for module, row in _MODULES.items() if module.startswith("lib."))
    pairs = (pair.split(":") for row in rows for pair in row.split())
    return next((home for home, found in pairs if found == name), None)
