"""Optimizers: which family a run uses, and the numbers of one step.

Families this version does not know travel unchanged. Knows nothing of how a step is computed.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import ConfigDict, Discriminator, Field, SerializeAsAny, Tag

from tinkex.types.strictness import Strict, exported


class OptimizerConfigBase(Strict):
    """Any optimizer family by name, with whatever settings it has."""

    model_config = ConfigDict(extra="allow")

    type: str


@exported
class AdamOptimizerConfig(OptimizerConfigBase):
    """The Adam family, chosen when a run is made."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["adamw"] = "adamw"


@exported
class DimuonOptimizerConfig(OptimizerConfigBase):
    """The Dimuon family, chosen when a run is made."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["dimuon"] = "dimuon"
    version: Literal[1] = 1


OptimizerConfig: TypeAlias = Annotated[
    AdamOptimizerConfig | DimuonOptimizerConfig | SerializeAsAny[OptimizerConfigBase],
    Field(union_mode="left_to_right"),
]


@exported
class AdamParams(Strict):
    """One AdamW step: decoupled weight decay; `grad_clip_norm` 0 means no clipping."""

    model_config = ConfigDict(allow_inf_nan=False)

    learning_rate: float = 0.0001
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class OptimParamsBase(Strict):
    """One step of any optimizer family by name, with whatever numbers it takes."""

    model_config = ConfigDict(extra="allow")

    type: str


@exported
class DimuonParams(OptimParamsBase):
    """One Dimuon step; `grad_clip_norm` <= 0 means no clipping."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    type: Literal["dimuon"] = "dimuon"
    learning_rate: float = Field(ge=0)
    grad_clip_norm: float = 0.0
    beta1: float = Field(default=0.9, ge=0, lt=1)


def _family(value: object) -> str:
    """Adam parameters carry no family name, every other family does."""
    if isinstance(value, AdamParams) or (isinstance(value, dict) and "type" not in value):
        return "adam"
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "dimuon" if kind == "dimuon" and not _is_open(value) else "other"


def _is_open(value: object) -> bool:
    return isinstance(value, OptimParamsBase) and not isinstance(value, DimuonParams)


OptimParams: TypeAlias = Annotated[
    Annotated[AdamParams, Tag("adam")]
    | Annotated[DimuonParams, Tag("dimuon")]
    | Annotated[SerializeAsAny[OptimParamsBase], Tag("other")],
    Discriminator(_family),
]
