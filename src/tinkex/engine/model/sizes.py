"""How large a model and its adapters are, counted from its configuration alone. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tinkex.engine.errors import ModelError
from tinkex.engine.model.block_configs import (
    AttentionConfig,
    DenseMlpConfig,
    ExpertsConfig,
    GatedDeltaConfig,
)
from tinkex.engine.model.config import LayerConfig, ModelConfig, slots
from tinkex.engine.model.families import family_of, parse_config

WEIGHTS_SHARE = 0.9
"""Of the memory there is that weights may take: caches, adapters and activations need the rest."""

_SLIVER = 128
"""Columns of an expert's matrix below which whole experts are dealt out rather: a tile of a GPU's
matrix units, and four blocks of MXFP4."""
_STATE_WIDTH = 4
"""Bytes of a number in a linear layer's state, whatever the model's type."""


@dataclass(frozen=True, slots=True)
class Sizes:
    parameters: int  # of the base model
    active: int
    """Parameters a token meets: of a mixture the experts it is sent to."""
    adapter: int
    """Parameters per rank, of an adapter on all modules."""
    cached: int
    """Numbers that keys and values of a token take."""
    states: int
    """Bytes of the linear layers' states of a sequence."""
    context: int  # the most tokens of a sequence
    packable: int = 0
    """Parameters that lie in MXFP4, in the files at least."""
    unpacked: int = 0
    """The most of them that are widened at a time where they stay packed on a GPU: of one layer,
    gate and up."""

    def weights(self, width: int, *, packed: bool = False) -> int:
        """Bytes, at so many a number; those in MXFP4 packed or widened as well."""
        if not packed:
            return self.parameters * width
        return (self.parameters - self.packable) * width + self.packable * 17 // 32


def sizes_of(config: ModelConfig) -> Sizes:
    parameters = _parameters(config, active=False)
    return Sizes(
        parameters=parameters,
        active=_parameters(config, active=True),
        adapter=_adapter(config),
        cached=sum(2 * mixer.kv_size for mixer in config.attends if mixer is not None),
        states=sum(map(_state, config.recurrent.values())),
        context=config.max_context,
    )


def sizes_of_raw(raw: Mapping[str, Any], ranks: int = 1, *, whole_experts: bool = False) -> Sizes:
    """Of a parsed `config.json`, or of what each of several ranks has of it; `ValueError` where it
    is not one that this engine computes, or divides, or that ranks had better divide otherwise."""
    try:
        share = parse_config(raw).share(0, ranks, whole_experts=whole_experts)
        if not whole_experts and ranks > 1:
            _refuse_slivers(share)
        found = sizes_of(share)
        if not is_mxfp4(raw):
            return found
        experts = [_in_experts(layer) * share.hidden_size for layer in share.layers]
        return replace(found, packable=sum(experts), unpacked=max(experts) * 2 // 3)
    except (ModelError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None


def is_mxfp4(raw: Mapping[str, Any]) -> bool:
    """Whether a configuration says that its experts are packed."""
    quantized = raw.get("quantization_config")
    return isinstance(quantized, Mapping) and quantized.get("quant_method") == "mxfp4"


def _in_experts(layer: LayerConfig) -> int:
    """Rows as wide as the stream, of all experts' matrices."""
    mlp = layer.mlp
    return 3 * mlp.experts * mlp.inner if isinstance(mlp, ExpertsConfig) else 0


def _refuse_slivers(share: ModelConfig) -> None:
    ranks = 1 if share.shard is None else share.shard.size
    for mixture in share.mixtures.values():
        if mixture.inner < _SLIVER and not mixture.experts % ranks:
            raise ModelError(f"ranks: {mixture.inner} columns of each expert; deal out whole ones")


def _parameters(config: ModelConfig, *, active: bool) -> int:
    hidden, norms = config.hidden_size, family_of(config.family).norms
    named = (norms.mixer_in, norms.mlp_in, norms.mixer_out, norms.mlp_out)
    total = hidden * (len(config.layers) * sum(name is not None for name in named) + 1)
    total += config.vocab_size * hidden * (1 if config.tied else 2)
    for layer in config.layers:
        total += _mixer(layer.mixer, hidden)
        total += _mlp(layer.mlp, hidden, active=active)
    return total


def _mixer(mixer: AttentionConfig | GatedDeltaConfig, hidden: int) -> int:
    if isinstance(mixer, GatedDeltaConfig):
        heads, values = mixer.value_heads, mixer.value_size
        projections = hidden * (mixer.channels + 2 * values + 2 * heads)
        return projections + mixer.channels * mixer.conv_width + 2 * heads + mixer.value_dim
    total = hidden * (sum(mixer.qkv_sizes) + mixer.q_size)
    total += sum(mixer.qkv_sizes) * mixer.qkv_bias + hidden * mixer.o_bias
    total += mixer.heads * mixer.sinks
    if mixer.qk_norm:
        total += mixer.q_size + mixer.kv_size if mixer.wide_norms else 2 * mixer.head_dim
    return total


def _mlp(mlp: DenseMlpConfig | ExpertsConfig, hidden: int, *, active: bool) -> int:
    if isinstance(mlp, DenseMlpConfig):
        return 3 * hidden * mlp.inner + (2 * mlp.inner + hidden) * mlp.bias
    one = 3 * hidden * mlp.inner + (2 * mlp.inner + hidden) * mlp.biased
    total = (mlp.active if active else mlp.experts) * one
    total += mlp.routed * (hidden + mlp.biased)
    return total if mlp.shared is None else total + _mlp(mlp.shared, hidden, active=active) + hidden


def _adapter(config: ModelConfig) -> int:
    total = 0
    for placed in slots(config).values():
        slot = placed.slot
        a = len(slot.modules) * slot.in_features * (slot.experts_a or 1)
        b = sum(out for _, out in slot.modules) * (slot.experts_b or 1)
        total += len(placed.layers) * (a + b)
    return total


def _state(mixer: GatedDeltaConfig) -> int:
    matrix = mixer.value_heads * mixer.key_dim * mixer.value_dim
    return (matrix + mixer.channels * (mixer.conv_width - 1)) * _STATE_WIDTH
