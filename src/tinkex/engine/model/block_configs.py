"""The shapes of blocks, without tensors: what a family reads from a `config.json`.

No torch here, so that a folder can be judged before an engine starts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tinkex.engine.errors import ModelError
from tinkex.engine.model.rope_config import RopeConfig
from tinkex.engine.model.slots import Slot

QKV, OUT = "qkv_proj", "o_proj"
UP, DOWN = "experts_gate_up", "experts_down"
SHARED_GATE = "shared_expert_gate"
DELTA_IN, DELTA_BA, DELTA_OUT = "in_proj_qkvz", "in_proj_ba", "out_proj"


def _part(whole: int, ranks: int, name: str) -> int:
    if whole % ranks:
        raise ModelError(
            f"ranks: {name} is {whole}, which {ranks} ranks cannot divide; choose a number of "
            "ranks that divides it"
        )
    return whole // ranks


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    heads: int  # of queries
    kv_heads: int  # of keys and values
    head_dim: int  # width of a head
    norm_eps: float  # of the norms of queries and keys
    rope: RopeConfig | None
    """None where queries and keys are not rotated."""
    window: int | None = None
    """The number of positions a token may attend to, itself included; None for all before it."""
    qkv_bias: bool = False  # whether those projections have one
    o_bias: bool = False  # whether the output projection has one
    qk_norm: bool = False  # whether queries and keys are normed
    gated: bool = False
    """Whether each query comes with a gate, through a sigmoid, for its head's output."""
    scale: float | None = None
    """Of the products of queries and keys, where it is not 1/sqrt(head size)."""
    wide_norms: bool = False
    """Whether queries and keys are normed over all heads at once, not head by head."""
    sinks: bool = False
    """Whether each head has a logit that takes a share of its attention and gives nothing."""
    path: str = "self_attn"
    """Where adapters say that the modules lie within the layer."""

    @property
    def group(self) -> int:
        """Heads that share a key head."""
        return self.heads // self.kv_heads

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Output widths of the three projections."""
        return self.q_size * (2 if self.gated else 1), self.kv_size, self.kv_size

    def slots(self, hidden: int) -> dict[str, Slot]:
        names = (f"{self.path}.{part}_proj" for part in "qkv")
        qkv = tuple(zip(names, self.qkv_sizes, strict=True))
        return {
            QKV: Slot("attention", hidden, qkv),
            OUT: Slot("attention", self.q_size, ((f"{self.path}.o_proj", hidden),)),
        }

    def share(self, ranks: int) -> AttentionConfig:
        """What each of so many ranks has of it; `ModelError` names what cannot be divided."""
        if self.wide_norms and ranks > 1:
            raise ModelError(
                "ranks: this family norms queries and keys over all heads at once, which are on "
                "one device; serve it with ranks=1"
            )
        heads = _part(self.heads, ranks, "num_attention_heads")
        kv_heads = _part(self.kv_heads, ranks, "num_key_value_heads")
        return replace(self, heads=heads, kv_heads=kv_heads)

    def kept(self, hidden: int) -> int:
        gate = 3 * self.q_size if self.gated else 0
        return 2 * hidden + 3 * self.q_size + 4 * self.kv_size + gate


@dataclass(frozen=True, slots=True)
class GatedDeltaConfig:
    key_heads: int  # of queries and of keys
    value_heads: int  # a multiple of them
    key_dim: int  # size of a key head
    value_dim: int  # size of a value head
    conv_width: int
    """Tokens that the convolution sees, the last included."""
    norm_eps: float  # of the gated norm

    @property
    def key_size(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return 2 * self.key_size + self.value_size

    def slots(self, hidden: int) -> dict[str, Slot]:
        names = ("in_proj_q", "in_proj_k", "in_proj_v", "in_proj_z")
        sizes = (self.key_size, self.key_size, self.value_size, self.value_size)
        into = tuple((f"linear_attn.{n}", size) for n, size in zip(names, sizes, strict=True))
        return {
            DELTA_IN: Slot("attention", hidden, into),
            DELTA_OUT: Slot("attention", self.value_size, (("linear_attn.out_proj", hidden),)),
        }

    def share(self, ranks: int) -> GatedDeltaConfig:
        keys = _part(self.key_heads, ranks, "linear_num_key_heads")
        values = _part(self.value_heads, ranks, "linear_num_value_heads")
        return replace(self, key_heads=keys, value_heads=values)

    def kept(self, hidden: int) -> int:
        return 2 * hidden + 2 * self.channels + 4 * self.value_size


@dataclass(frozen=True, slots=True)
class DenseMlpConfig:
    inner: int
    bias: bool = False
    gelu: bool = False
    """Whether the gate goes through a GELU (its tanh form), not through a SiLU."""
    path: str = "mlp"
    """Where the modules lie within the layer."""
    prefix: str = ""
    """Of the slots' names, where a layer has more than one such MLP."""

    @property
    def gate_up(self) -> str:
        return f"{self.prefix}gate_up_proj"

    @property
    def down(self) -> str:
        return f"{self.prefix}down_proj"

    def slots(self, hidden: int) -> dict[str, Slot]:
        gate_up = ((f"{self.path}.gate_proj", self.inner), (f"{self.path}.up_proj", self.inner))
        return {
            self.gate_up: Slot("mlp", hidden, gate_up),
            self.down: Slot("mlp", self.inner, ((f"{self.path}.down_proj", hidden),)),
        }

    def share(self, ranks: int) -> DenseMlpConfig:
        return replace(self, inner=_part(self.inner, ranks, "intermediate_size"))

    def kept(self, hidden: int) -> int:
        return 2 * hidden + 3 * self.inner


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    experts: int
    """Whose matrices are here."""
    active: int
    """Experts per token."""
    inner: int  # columns between the two products of an expert
    renormalise: bool
    """Whether the weights of a token's choices are scaled to sum to one."""
    biased: bool = False
    """Whether the router and the experts' matrices have biases."""
    clamp: float | None = None
    """Where gate and up are cut off, in mixtures whose gate is that of gpt-oss."""
    shared: DenseMlpConfig | None = None
    """One more MLP for every token, times a sigmoid gate."""
    first: int = 0
    """The number of the first of those, where other ranks have the others."""
    choices: int | None = None
    """How many there are in all; None where all are here."""

    @property
    def own(self) -> range:
        """Their numbers."""
        return range(self.first, self.first + self.experts)

    @property
    def routed(self) -> int:
        """How many the router chooses among."""
        return self.experts if self.choices is None else self.choices

    def slots(self, hidden: int) -> dict[str, Slot]:
        """On the side of the residual stream all experts share one factor."""
        up = (("mlp.experts.w1", self.inner), ("mlp.experts.w3", self.inner))
        down = (("mlp.experts.w2", hidden),)
        return {
            UP: Slot("mlp", hidden, up, experts_b=self.experts),
            DOWN: Slot("mlp", self.inner, down, experts_a=self.experts),
            **({} if self.shared is None else self.shared.slots(hidden)),
        }

    def share(self, ranks: int) -> ExpertsConfig:
        """Of every expert a part."""
        shared = None if self.shared is None else self.shared.share(ranks)
        return replace(self, inner=_part(self.inner, ranks, "moe_intermediate_size"), shared=shared)

    def deal(self, rank: int, ranks: int) -> ExpertsConfig:
        """Whole experts, as many as every other rank has; of the shared one a part."""
        own = _part(self.experts, ranks, "the number of experts")
        shared = None if self.shared is None else self.shared.share(ranks)
        return replace(self, experts=own, first=rank * own, choices=self.experts, shared=shared)

    def kept(self, hidden: int) -> int:
        shared = 0 if self.shared is None else self.shared.kept(hidden)
        return 2 * hidden + 3 * self.active * self.inner + shared
