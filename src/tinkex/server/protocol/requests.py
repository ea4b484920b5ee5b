"""The requests this server reads: the protocol's types with this server's limits.

A field's name, kind and default are in its type. Here is how much of it this server takes, what it
requires, and what it does without although the type requires it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tinkex.server.protocol.limited import (
    FAR,
    REQUIRED,
    TEXT_LIMIT,
    at_least,
    at_most,
    below,
    between,
    limited,
    nested,
    otherwise,
    read_by,
    within_bytes,
)
from tinkex.server.protocol.reading import Reader
from tinkex.types.checkpoints import (
    CopyWeightsRequest,
    LoadWeightsRequest,
    SaveWeightsExternalRequest,
    SaveWeightsForSamplerRequest,
    SaveWeightsRequest,
)
from tinkex.types.futures import (
    FutureRetrieveRequest,
    FuturesRetrieveRequest,
    SamplingSessionFuturesTarget,
)
from tinkex.types.models import (
    CreateCustomLossRequest,
    CreateModelRequest,
    CustomLossGraph,
    GetInfoRequest,
    LoraConfig,
    OptimStepRequest,
)
from tinkex.types.optimizer import AdamParams
from tinkex.types.sampling import (
    CreateSamplingSessionRequest,
    JoinSamplingSessionRequest,
    SampleRequest,
    SamplingParams,
)
from tinkex.types.service import ClientConfigRequest
from tinkex.types.sessions import (
    ClientFinishedSessionStatusQuery,
    CreateSessionRequest,
    SessionHeartbeatRequest,
    SessionSearchCursor,
    SessionSearchRequest,
)
from tinkex.types.small_requests import (
    CancelFutureRequest,
    CheckpointTtlRequest,
    DashboardSignInRequest,
    EngineRequest,
    FinishSessionRequest,
    LoadAddress,
    OperationAddress,
    RestartEngineRequest,
    RunNameRequest,
    RunNoteRequest,
    SessionProjectRequest,
    WeightsInfoRequest,
)
from tinkex.types.strictness import defaults
from tinkex.types.tokens import MAX_TOKEN_ID
from tinkex.wire.limits import (
    FIRST_SAMPLING_SEQ_ID,
    FIRST_TRAINING_SEQ_ID,
    MAX_AGE_RECIPIENTS,
    MAX_CUSTOM_LOSS_INPUTS,
    MAX_FWDBWD_SEQ_ID,
    SKIPPED_TARGET,
)

NAME_LIMIT = 200
NOTE_LIMIT = 4000
_LABEL = at_most(256)
_COUNT = between(0, FAR)
_TOKEN = at_most(8192)
_NUMBER = between(0, MAX_FWDBWD_SEQ_ID)
_OPERATION = {
    "model_id": REQUIRED,
    "seq_id": REQUIRED | between(FIRST_TRAINING_SEQ_ID, MAX_FWDBWD_SEQ_ID),
}
RANK_LIMIT = 1024
TARGET_TOKENS = (SKIPPED_TARGET, MAX_TOKEN_ID)
_STOPS_LIMIT = 4096
_VALUES = at_most(100)
_SEARCHED = 32
"""Entries of a session's metadata, or words of its name: each is looked for in every session."""


def _few_words(value: Any) -> Any:
    if isinstance(value, str) and len(value.split()) > _SEARCHED:
        raise ValueError(f"has {len(value.split())} words; the limit is {_SEARCHED}")
    return value


def _moment(value: Any) -> datetime:
    """A time with its offset from UTC, written as text."""
    try:
        found = datetime.fromisoformat(value)
        if found.tzinfo is None:
            raise ValueError("needs an offset from UTC")
        return found.astimezone(UTC)
    except (TypeError, OverflowError):
        raise ValueError("must be an ISO 8601 time with its offset from UTC") from None


# ---- the server itself

CLIENT_CONFIG = Reader(limited(ClientConfigRequest, sdk_version=otherwise("")), is_open=True)
"""What clients say about themselves is read by nobody."""

DASHBOARD_SIGN_IN = Reader(limited(DashboardSignInRequest, key=_TOKEN, invitation=_LABEL))

# ---- sessions

CREATE_SESSION = Reader(
    limited(
        CreateSessionRequest,
        tags=at_most(100) | otherwise([]),
        user_metadata=otherwise(None),
        sdk_version=at_most(64) | otherwise(""),
        project_id=_LABEL,
        display_name=_LABEL,
    )
)
SESSION_HEARTBEAT = Reader(limited(SessionHeartbeatRequest))
FINISH_SESSION = Reader(limited(FinishSessionRequest))
SESSION_PROJECT = Reader(limited(SessionProjectRequest, project_id=_LABEL))

nested(SessionSearchCursor, last_created_at=read_by(_moment))
nested(ClientFinishedSessionStatusQuery, reasons=at_most(_SEARCHED))
SEARCH_SESSIONS = Reader(
    limited(
        SessionSearchRequest,
        project_ids=_VALUES,
        statuses=_VALUES,
        user_metadata=at_most(_SEARCHED),
        display_name=read_by(_few_words) | at_most(TEXT_LIMIT),
    )
)

# ---- runs and their checkpoints

GET_INFO = Reader(limited(GetInfoRequest))
NAME_ENGINE = Reader(limited(EngineRequest))
RESTART_ENGINE = Reader(limited(RestartEngineRequest))
RUN_NAME = Reader(limited(RunNameRequest, name=at_most(NAME_LIMIT)))
RUN_NOTE = Reader(limited(RunNoteRequest, note=at_most(NOTE_LIMIT)))
WEIGHTS_INFO = Reader(limited(WeightsInfoRequest))
CHECKPOINT_TTL = Reader(limited(CheckpointTtlRequest))
COPY_WEIGHTS = Reader(
    limited(CopyWeightsRequest, destination_project_id=_LABEL),
    without=dict.fromkeys(
        ("session_id", "model_seq_id"), "is not taken: a copy gets a session and run of its own"
    ),
)

# ---- training

OPERATION = Reader(limited(OperationAddress, **_OPERATION), is_open=True)
LOAD_ADDRESS = Reader(limited(LoadAddress, **_OPERATION, weights_access_token=_TOKEN), is_open=True)

nested(LoraConfig, rank=between(1, RANK_LIMIT) | otherwise(32))
CREATE_MODEL = Reader(limited(CreateModelRequest, model_seq_id=_NUMBER, lora_config=REQUIRED))

ADAM = Reader(
    limited(
        AdamParams,
        learning_rate=at_least(0),
        beta1=at_least(0) | below(1),
        beta2=at_least(0) | below(1),
        eps=at_least(0),
        weight_decay=at_least(0),
        grad_clip_norm=at_least(0),
    )
)
OPTIM_STEP = Reader(limited(OptimStepRequest, **_OPERATION))

SAVE_WEIGHTS = Reader(limited(SaveWeightsRequest, **_OPERATION, path=REQUIRED))
SAVE_WEIGHTS_FOR_SAMPLER = Reader(
    limited(SaveWeightsForSamplerRequest, **_OPERATION, sampling_session_seq_id=_COUNT)
)
SAVE_WEIGHTS_EXTERNAL = Reader(
    limited(
        SaveWeightsExternalRequest,
        **_OPERATION,
        age_encryption_recipients=at_most(MAX_AGE_RECIPIENTS),
    )
)

LOAD_WEIGHTS = Reader(
    limited(LoadWeightsRequest, **_OPERATION, weights_access_token=_TOKEN),
    without=dict.fromkeys(
        ("session_id", "model_seq_id", "base_model", "user_metadata", "optimizer_config"),
        "is for a new run, made with session_id and model_seq_id in place of model_id and seq_id",
    ),
)
CREATE_FROM = Reader(
    limited(
        LoadWeightsRequest,
        session_id=REQUIRED,
        model_seq_id=REQUIRED | _NUMBER,
        weights_access_token=_TOKEN,
    ),
    without=dict.fromkeys(
        ("model_id", "seq_id"), "is for a run that exists; session_id makes a new one"
    ),
)

nested(CustomLossGraph, nodes=at_most(10_000))
CREATE_CUSTOM_LOSS = Reader(
    limited(
        CreateCustomLossRequest,
        custom_loss_seq_id=_NUMBER,
        name=_LABEL,
        inputs=at_most(MAX_CUSTOM_LOSS_INPUTS),
        graph=within_bytes(1024 * 1024),
    )
)

# ---- samplers and futures

CREATE_SAMPLER = Reader(limited(CreateSamplingSessionRequest, sampling_session_seq_id=_COUNT))
JOIN_SAMPLER = Reader(limited(JoinSamplingSessionRequest))

_TOPK = between(0, 1000)


def _stop(value: Any) -> Any:
    """Text, texts or token ids; never a mixture."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or len(value) > _STOPS_LIMIT:
        raise ValueError(f"must be text or a list of at most {_STOPS_LIMIT}")
    if all(isinstance(entry, str) and entry for entry in value):
        return value
    if all(type(entry) is int and 0 <= entry <= MAX_TOKEN_ID for entry in value):
        return value
    raise ValueError("must hold non-empty strings only, or token ids only")


def _whole(value: Any) -> Any:
    """A tensor of integers: what numpy would make one of is not taken for one."""
    for name, entries in value.items() if isinstance(value, dict) else ():
        if name == "dtype" and entries != "int64":
            raise ValueError("dtype must be int64")
        if name != "dtype" and not _are_integers(entries):
            raise ValueError(f"{name} must hold integers only")
    return value


def _are_integers(entries: Any) -> bool:
    return entries is None or (isinstance(entries, list) and set(map(type, entries)) <= {int})


nested(
    SamplingParams,
    max_tokens=between(0, MAX_TOKEN_ID),
    seed=between(-(2**63), 2**64 - 1),
    stop=read_by(_stop),
    temperature=between(0, 1e6),
    top_k=between(-1, MAX_TOKEN_ID),
)
ASAMPLE = Reader(
    limited(
        SampleRequest,
        sampling_session_id=REQUIRED,
        seq_id=REQUIRED | between(FIRST_SAMPLING_SEQ_ID, 2**62),
        sampling_params=otherwise(defaults(SamplingParams)),
        num_samples=between(1, MAX_TOKEN_ID),
        prompt_logprobs_last_n=between(1, MAX_TOKEN_ID),
        topk_prompt_logprobs=_TOPK,
        topk_sample_logprobs=_TOPK,
        prompt_alt_tokens_k=_TOPK,
        target_prompt_logprobs=read_by(_whole),
    ),
    without=dict.fromkeys(
        ("base_model", "model_path"), "belongs to create_sampling_session; a sample has a session"
    ),
)
RETRIEVE_FUTURE = Reader(limited(FutureRetrieveRequest))
CANCEL_FUTURE = Reader(limited(CancelFutureRequest))
nested(SamplingSessionFuturesTarget, cloned_sampler_id=_COUNT)
RETRIEVE_FUTURES = Reader(limited(FuturesRetrieveRequest, prev_cursor=_COUNT))
