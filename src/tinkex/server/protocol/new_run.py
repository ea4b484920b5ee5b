"""What a client says about the run it wants: fresh, or made from a checkpoint. Only reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tinkex.server.protocol.fields import Fields
from tinkex.server.refusals import Refusal

OPTIMIZERS = ("adamw", "dimuon")
RANK_LIMIT = 1024
_SEQ_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run with fresh adapters. Without a seed one is chosen for it."""

    session_id: str
    number: int
    base_model: str
    optimizer: str
    user_metadata: dict[str, Any] | None
    rank: int
    seed: int | None
    train_attn: bool
    train_mlp: bool
    train_unembed: bool


@dataclass(frozen=True, slots=True)
class RunFrom:
    """A run with the weights of a checkpoint, and with `optimizer` all that goes with them."""

    session_id: str
    number: int
    path: str
    optimizer: bool
    token: str | None
    base_model: str | None
    optimizer_config: str | None
    user_metadata: dict[str, Any] | None


def read(fields: Fields) -> NewRun:
    """Raises `Refusal` with the field that is wrong."""
    lora = fields.nested("lora_config")
    if lora is None:
        raise Refusal("lora_config is required: only LoRA runs are served")
    asked = NewRun(
        session_id=fields.text("session_id"),
        number=fields.integer("model_seq_id", low=0, high=_SEQ_LIMIT),
        base_model=fields.text("base_model"),
        optimizer=_optimizer(fields) or '{"type": "adamw"}',
        user_metadata=fields.mapping("user_metadata"),
        rank=lora.integer("rank", low=1, high=RANK_LIMIT, default=32),
        seed=lora.optional_integer("seed", low=-(2**63), high=2**63 - 1),
        train_attn=lora.flag("train_attn", True),
        train_mlp=lora.flag("train_mlp", True),
        train_unembed=lora.flag("train_unembed", True),
    )
    lora.finish()
    fields.finish()
    if not (asked.train_attn or asked.train_mlp or asked.train_unembed):
        raise Refusal("lora_config trains nothing: set train_attn, train_mlp or train_unembed")
    return asked


def read_from(fields: Fields) -> RunFrom:
    """Raises `Refusal` with the field that is wrong."""
    asked = RunFrom(
        session_id=fields.text("session_id"),
        number=fields.integer("model_seq_id", low=0, high=_SEQ_LIMIT),
        path=fields.text("path"),
        optimizer=fields.flag("optimizer"),
        token=fields.optional_text("weights_access_token", limit=8192),
        base_model=fields.optional_text("base_model"),
        optimizer_config=_optimizer(fields),
        user_metadata=fields.mapping("user_metadata"),
    )
    fields.finish()
    return asked


def _optimizer(fields: Fields) -> str | None:
    """An optimizer's configuration as JSON text, as it was given; None when nothing is said."""
    config = fields.nested("optimizer_config")
    if config is None:
        return None
    values: dict[str, Any] = {"type": config.choice("type", OPTIMIZERS, "adamw")}
    if values["type"] == "dimuon":
        version = config.optional_integer("version", low=1, high=1)
        values |= {} if version is None else {"version": version}
    config.finish()
    return json.dumps(values, sort_keys=True)
