"""Training runs as models: creating one, stepping it, asking about it, custom losses.

Knows the shapes of the requests and answers, nothing of when they are sent.
"""

from typing import Any, Literal, TypeAlias

from pydantic import (
    AliasChoices,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)

from tinkex.types.optimizer import AdamOptimizerConfig, AdamParams, OptimizerConfig, OptimParams
from tinkex.types.strictness import Lenient, Strict, defaults, exported

ModelID: TypeAlias = str


@exported
class LoraConfig(Strict):
    """The adapters of a run: rank, seed, and which layers have one."""

    rank: int = Field(ge=1)
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class CreateModelRequest(Strict):
    """Start a training run."""

    session_id: str
    model_seq_id: int
    base_model: str
    user_metadata: dict[str, Any] | None = None
    lora_config: LoraConfig | None = None
    optimizer_config: OptimizerConfig = defaults(AdamOptimizerConfig)
    type: Literal["create_model"] = "create_model"


class CreateModelResponse(Lenient):
    """The id of the new run."""

    model_id: str
    type: Literal["create_model"] = "create_model"


class UnloadModelRequest(Strict):
    """Give a run's place on the server back."""

    model_id: str
    type: Literal["unload_model"] = "unload_model"


class UnloadModelResponse(Lenient):
    """The run that was unloaded."""

    model_id: str
    type: Literal["unload_model"] | None = None


class GetInfoRequest(Strict):
    """Asks about a run's model."""

    model_id: str
    type: Literal["get_info"] = "get_info"


class ModelData(Lenient):
    """The architecture, the name and the tokenizer of a model."""

    arch: str | None = None
    model_name: str | None = None
    tokenizer_id: str | None = None


class GetInfoResponse(Lenient):
    """The model of a run and its adapters."""

    type: Literal["get_info"] | None = None
    model_data: ModelData
    model_id: str
    optimizer_config: OptimizerConfig = defaults(AdamOptimizerConfig)
    is_lora: bool | None = None
    lora_rank: int | None = None
    model_name: str | None = None


@exported
class OptimStepRequest(Strict):
    """One optimizer step. Adam's numbers travel as `adam_params`, others as `optimizer_params`."""

    optim_params: OptimParams = Field(
        validation_alias=AliasChoices("adam_params", "optimizer_params", "optim_params")
    )
    model_id: str
    seq_id: int | None = None
    type: Literal["optim_step"] = "optim_step"

    @model_serializer(mode="wrap")
    def _named_by_family(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        name = "adam_params" if isinstance(self.optim_params, AdamParams) else "optimizer_params"
        if "optim_params" in fields:
            fields[name] = fields.pop("optim_params")
        return fields


@exported
class OptimStepResponse(Lenient):
    """What an optimizer step reports; servers may report nothing."""

    metrics: dict[str, float] | None = None


CustomLossInputRank: TypeAlias = Literal[0, 1, 2]
CustomLossNodeOp: TypeAlias = Literal[
    "placeholder", "get_attr", "call_function", "call_method", "call_module", "output"
]


class CustomLossInput(Strict):
    """One tensor that a traced loss is given."""

    name: str
    rank: CustomLossInputRank

    @field_validator("rank", mode="before")
    @classmethod
    def _not_a_bool(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("rank must be 0, 1 or 2, got bool")
        return value


class CustomLossNode(Strict):
    """One node of a traced loss; arguments in the encoding of the protocol."""

    op: CustomLossNodeOp
    name: str
    target: str
    args: list[Any] = Field(default=[])
    kwargs: dict[str, Any] = Field(default={})


class CustomLossGraph(Strict):
    """A traced loss: its nodes in order, its inputs and its results."""

    format: Literal[1] = 1
    nodes: list[CustomLossNode]


class CreateCustomLossRequest(Strict):
    """Register a traced loss with the server."""

    session_id: str
    custom_loss_seq_id: int
    name: str
    inputs: list[CustomLossInput]
    graph: CustomLossGraph
    type: Literal["create_custom_loss"] = "create_custom_loss"


class CreateCustomLossResponse(Lenient):
    """The name of a registered loss."""

    loss_id: str
    type: Literal["create_custom_loss"] = "create_custom_loss"
