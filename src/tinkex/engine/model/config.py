"""What a decoder looks like: its layers' blocks and what they share. No tensors, no files.

`families` makes one of these from a `config.json`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tinkex.engine.errors import ModelError
from tinkex.engine.model.block_configs import (
    AttentionConfig,
    DenseMlpConfig,
    ExpertsConfig,
    GatedDeltaConfig,
)
from tinkex.engine.model.slots import PARTS, UNEMBED, UNEMBED_LAYER, PlacedSlot, Slot


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """One layer: a block that mixes tokens, then one that works on each token alone."""

    mixer: AttentionConfig | GatedDeltaConfig
    mlp: DenseMlpConfig | ExpertsConfig

    def share(self, rank: int, ranks: int, *, whole_experts: bool) -> LayerConfig:
        mlp = self.mlp
        if whole_experts and isinstance(mlp, ExpertsConfig):
            return LayerConfig(self.mixer.share(ranks), mlp.deal(rank, ranks))
        return LayerConfig(self.mixer.share(ranks), mlp.share(ranks))

    def slots(self, hidden: int) -> dict[str, Slot]:
        return self.mixer.slots(hidden) | self.mlp.slots(hidden)

    def kept(self, hidden: int) -> int:
        return self.mixer.kept(hidden) + self.mlp.kept(hidden)


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of a model a configuration describes, where several devices share one."""

    rank: int
    size: int
    whole: ModelConfig


@dataclass(frozen=True, slots=True)
class ModelConfig:
    family: str  # its `model_type`
    vocab_size: int  # rows of the embedding
    hidden_size: int  # width of the stream between layers
    norm_eps: float  # of the last norm
    max_context: int  # positions it was made for
    layers: tuple[LayerConfig, ...]  # from the first to the last
    tied: bool = False  # whether the embedding is the output layer too
    embed_scale: float = 1.0
    """Times what is embedded."""
    residual_scale: float = 1.0
    """Times what a block adds to the stream."""
    logit_divisor: float = 1.0
    """Divides the logits."""
    one_plus_norms: bool = False
    """Whether norms scale by one plus their stored weight."""
    shard: Shard | None = None
    """Of which whole this is a part; None where it is the whole."""
    attention: AttentionConfig = field(init=False)
    """The shape of keys and values, one for all attention layers: they share one cache."""

    def __post_init__(self) -> None:
        found = [mixer for mixer in self.attends if mixer is not None]
        for mixer in found:
            _check_heads(mixer)
        if len({(mixer.kv_heads, mixer.head_dim) for mixer in found}) != 1:
            raise ModelError(
                "config.json: layers differ in their key-value heads or head size, or none attends"
            )
        object.__setattr__(self, "attention", found[0])

    def share(self, rank: int, ranks: int, *, whole_experts: bool = False) -> ModelConfig:
        """What one of several ranks has of it: of every expert a part, or `whole_experts`.
        `ModelError` names what cannot be divided."""
        if ranks == 1:
            return self
        if whole_experts and not self.mixtures:
            raise ModelError("whole_experts: this model has no experts; leave it out")
        layers = tuple(
            layer.share(rank, ranks, whole_experts=whole_experts) for layer in self.layers
        )
        return replace(self, layers=layers, shard=Shard(rank, ranks, self))

    @property
    def attends(self) -> tuple[AttentionConfig | None, ...]:
        """Each layer's attention; None where it mixes tokens otherwise."""
        mixers = (layer.mixer for layer in self.layers)
        return tuple(m if isinstance(m, AttentionConfig) else None for m in mixers)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Each layer's sliding window."""
        return tuple(None if mixer is None else mixer.window for mixer in self.attends)

    @property
    def recurrent(self) -> dict[int, GatedDeltaConfig]:
        """The layers that keep a state of every sequence."""
        mixers = ((index, layer.mixer) for index, layer in enumerate(self.layers))
        return {index: m for index, m in mixers if isinstance(m, GatedDeltaConfig)}

    @property
    def mixtures(self) -> dict[int, ExpertsConfig]:
        """The layers that are mixtures of experts."""
        mlps = ((index, layer.mlp) for index, layer in enumerate(self.layers))
        return {index: mlp for index, mlp in mlps if isinstance(mlp, ExpertsConfig)}

    @property
    def mixes(self) -> bool:
        """Whether any layer is a mixture of experts."""
        return bool(self.mixtures)

    @property
    def capturable(self) -> bool:
        """Whether all layers are of blocks that a captured training pass can hold."""
        dense = all(isinstance(layer.mlp, DenseMlpConfig) for layer in self.layers)
        return dense and not self.recurrent and not self.attention.sinks

    @property
    def kept(self) -> int:
        """About how many numbers a training pass keeps per token for its backward pass."""
        return sum(layer.kept(self.hidden_size) for layer in self.layers)


def slots(config: ModelConfig) -> dict[str, PlacedSlot]:
    """Every slot by name, in the order in which their factors lie in an adapter's vector."""
    found: dict[str, PlacedSlot] = {}
    for index, layer in enumerate(config.layers):
        for name, slot in layer.slots(config.hidden_size).items():
            before = found.get(name, PlacedSlot(slot, ()))
            if before.slot != slot:
                raise ModelError(f"config.json: {name} of layer {index} has a shape of its own")
            found[name] = PlacedSlot(slot, (*before.layers, index))
    unembed = Slot("unembed", config.hidden_size, ((UNEMBED, config.vocab_size),))
    found[UNEMBED] = PlacedSlot(unembed, (UNEMBED_LAYER,))
    return {name: found[name] for part in PARTS for name in found if found[name].slot.part == part}


def _check_heads(attention: AttentionConfig) -> None:
    if attention.heads % attention.kv_heads or attention.head_dim % 2:
        raise ModelError(
            f"config.json: {attention.heads} attention heads of size {attention.head_dim} cannot "
            f"share {attention.kv_heads} key-value heads; heads must be a multiple and the size "
            "even"
        )
