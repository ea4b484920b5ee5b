"""Checkpoints and the runs they belong to: saving, loading, listing, copying, publishing.

Knows the shapes of requests and answers, and where the console shows a checkpoint.
"""

from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote, urlencode

from pydantic import Field

from tinkex.types.optimizer import AdamOptimizerConfig, OptimizerConfig
from tinkex.types.strictness import Lenient, Strict, defaults, exported
from tinkex.types.tinker_path import CHECKPOINT_KINDS, CheckpointType, split_tinker_path

CONSOLE_URL = "https://tinker.thinkingmachines.ai"


@exported
class Checkpoint(Lenient):
    """A checkpoint as listed. `base_model` and `step` are additions that our server fills in."""

    checkpoint_id: str
    checkpoint_type: CheckpointType
    time: datetime
    tinker_path: str
    size_bytes: int | None = None
    public: bool = False
    user_metadata: dict[str, str] | None = None
    expires_at: datetime | None = None
    base_model: str | None = Field(default=None, exclude=True)
    step: int | None = Field(default=None, exclude=True)


@exported
class ParsedCheckpointTinkerPath(Lenient):
    """A `tinker://` path and its parts; `checkpoint_id` is `<kind>/<name>`."""

    tinker_path: str
    training_run_id: str
    checkpoint_type: CheckpointType
    checkpoint_id: str

    @classmethod
    def from_tinker_path(cls, tinker_path: str) -> "ParsedCheckpointTinkerPath":
        """ValueError unless `tinker_path` has the form of a checkpoint path."""
        run, kind, name = split_tinker_path(tinker_path)
        return cls(
            tinker_path=tinker_path,
            training_run_id=run,
            checkpoint_type=CHECKPOINT_KINDS[kind],
            checkpoint_id=f"{kind}/{name}",
        )


class Cursor(Lenient):
    """Where a page begins, how long it may be, and how much there is in all."""

    offset: int
    limit: int
    total_count: int


class CheckpointsListResponse(Lenient):
    """A page of checkpoints."""

    checkpoints: list[Checkpoint]
    cursor: Cursor | None = None


class SamplerGap(Lenient):
    """How far a trainer's logprobs were from those a sampler gave, with the same weights: absolute
    differences in nats over the sampled tokens of the newest call that could be measured."""

    mean: float
    max: float
    tokens: int


@exported
class TrainingRun(Lenient):
    """A training run as listed. What follows `user_metadata` are additions that our server fills
    in; `last_loss` is per token, `state` is live, stopping or ended."""

    training_run_id: str
    base_model: str
    model_owner: str
    is_lora: bool
    corrupted: bool = False
    lora_rank: int | None = None
    last_request_time: datetime
    last_checkpoint: Checkpoint | None = None
    last_sampler_checkpoint: Checkpoint | None = None
    user_metadata: dict[str, str] | None = None
    sampler_gap: SamplerGap | None = Field(default=None, exclude=True)
    name: str | None = Field(default=None, exclude=True)
    note: str | None = Field(default=None, exclude=True)
    created_at: datetime | None = Field(default=None, exclude=True)
    state: str | None = Field(default=None, exclude=True)
    step: int | None = Field(default=None, exclude=True)
    last_loss: float | None = Field(default=None, exclude=True)
    tokens: int | None = Field(default=None, exclude=True)


class TrainingRunsResponse(Lenient):
    """A page of runs."""

    training_runs: list[TrainingRun]
    cursor: Cursor


def _console_url(path: str) -> str:
    parsed = ParsedCheckpointTinkerPath.from_tinker_path(path)
    run, checkpoint = quote(parsed.training_run_id, safe=""), quote(parsed.checkpoint_id, safe="")
    return f"{CONSOLE_URL}/checkpoints/{run}/{checkpoint}"


class SaveWeightsRequest(Strict):
    """Save weights and optimizer to go on from."""

    model_id: str
    path: str | None = None
    seq_id: int | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None
    type: Literal["save_weights"] = "save_weights"


class SaveWeightsResponse(Lenient):
    """Where the state is."""

    path: str
    type: Literal["save_weights"] | None = None

    def get_console_url(self) -> str:
        """Where the hosted console shows this checkpoint."""
        return _console_url(self.path)


class SaveWeightsForSamplerRequest(Strict):
    """Save weights to sample from."""

    model_id: str
    path: str | None = None
    sampling_session_seq_id: int | None = None
    seq_id: int | None = None
    ttl_seconds: int | None = None
    user_metadata: dict[str, str] | None = None
    type: Literal["save_weights_for_sampler"] = "save_weights_for_sampler"


class SaveWeightsForSamplerResponseInternal(Lenient):
    """Where the weights are, or the sampler that was made of them."""

    path: str | None = None
    sampling_session_id: str | None = None
    type: Literal["save_weights_for_sampler"] | None = None


class SaveWeightsForSamplerResponse(Lenient):
    """Where the weights are."""

    path: str
    type: Literal["save_weights_for_sampler"] | None = None

    def get_console_url(self) -> str:
        """Where the hosted console shows this checkpoint."""
        return _console_url(self.path)

    def get_playground_url(self) -> str:
        """Where the hosted console lets one talk to this checkpoint."""
        query = urlencode({"mode": "checkpoint", "checkpoint": self.path})
        return f"{CONSOLE_URL}/playground?{query}"


class SaveWeightsExternalRequest(Strict):
    """Export weights in the formats of other tools."""

    model_id: str
    path: str
    seq_id: int | None = None
    ttl_seconds: int | None = None
    age_encryption_recipients: list[str] | None = None
    type: Literal["save_weights_external"] = "save_weights_external"


class SaveWeightsExternalResponseInternal(Lenient):
    """Where the export is, as it is sent."""

    path: str | None = None
    size_bytes: int | None = None
    type: Literal["save_weights_external"] | None = None


class SaveWeightsExternalResponse(Lenient):
    """Where the export is."""

    path: str
    type: Literal["save_weights_external"] | None = None


class LoadWeightsRequest(Strict):
    """Addressed by `model_id` and `seq_id`, or, to create the model as well, by `session_id` and
    `model_seq_id`."""

    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = None
    base_model: str | None = None
    user_metadata: dict[str, Any] | None = None
    path: str
    optimizer: bool
    optimizer_config: OptimizerConfig | None = None
    weights_access_token: str | None = None
    type: Literal["load_weights"] = "load_weights"


class LoadWeightsResponse(Lenient):
    """What was loaded."""

    path: str | None = None
    model_id: str | None = None
    type: Literal["load_weights"] | None = None


class WeightsInfoResponse(Lenient):
    """How a checkpoint was made: base model and adapters."""

    base_model: str
    optimizer_config: OptimizerConfig = defaults(AdamOptimizerConfig)
    is_lora: bool
    lora_rank: int | None = None
    train_unembed: bool | None = None
    train_mlp: bool | None = None
    train_attn: bool | None = None


class ExternalWeightsUrlsResponse(Lenient):
    """Signed URLs of the files of an exported checkpoint."""

    urls: dict[str, str]
    expires: datetime


class CopyWeightsRequest(Strict):
    """Copy a checkpoint into a project."""

    session_id: str | None = None
    model_seq_id: int | None = None
    destination_project_id: str | None = None
    source_path: str
    ttl_seconds: int | None = None
    weights_access_token: str | None = None


class CopyWeightsResponse(Lenient):
    """Where the copy is."""

    tinker_path: str
