"""What a block is given for one forward pass: strategies that training and sampling each bring.

Tokens of any number of sequences lie end to end in one row of N. Which tokens see which, and where
keys and values are kept, is the `attend` strategy's business; what adapters add to the frozen
matrices is the `lora` strategy's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from tinkex.engine.kernels.available import runs_triton
from tinkex.engine.model.block_configs import AttentionConfig, GatedDeltaConfig
from tinkex.engine.model.matrices.frozen import Matrix, linear, linear_onto
from tinkex.engine.model.matrices.packed_experts import ExpertStack
from tinkex.engine.model.ops import swiglu
from tinkex.engine.model.routes import Routes, products

if TYPE_CHECKING:
    from tinkex.engine.kernels.mixtures.few_experts import FewRoutes


class Attend(Protocol):
    """What each token gathers from those it sees."""

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """q [N, heads, D], k and v [N, kv_heads, D] to [N, heads, D].

        Queries and keys come rotated and not yet scaled by 1/sqrt(D). The layer's sliding window is
        `config.windows[layer]`. A head's sink [heads] is one more logit, of a value of zero.
        """
        ...


class AttendProjected(ABC):
    """An `Attend` that also takes queries, keys and values as they are projected."""

    @abstractmethod
    def projected(
        self, layer: int, qkv: tuple[Tensor, Tensor | None], norms: tuple[Tensor, Tensor] | None,
        angles: Angles | None, sinks: Tensor | None, config: AttentionConfig,
    ) -> Tensor:  # fmt: skip
        """[N, q_size] from [N, all heads · D], as a sum still to be made: norms of queries and
        keys, rotation, attention, and the gate where the family has one."""


FEW_TOKENS = 256

Angles = tuple[Tensor, Tensor]
"""Cosines and sines as `Rope.angles` makes them."""


class Recur(Protocol):
    """What runs along sequences from token to token."""

    def heads(
        self, layer: int, channels: Tensor, weight: Tensor, config: GatedDeltaConfig
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values by head from [N, channels]: a causal convolution with weight
        [channels, width], then `delta.heads_of`."""
        ...

    def delta(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, write: Tensor
    ) -> Tensor:
        """The gated delta rule: q and k [N, key heads, key size], v [N, heads, value size], decay
        and write float32 [N, heads] to [N, heads, value size]. A key head serves as many value
        heads as there are times more of them."""
        ...


class Lora(Protocol):
    """What adapters do to the frozen matrix products."""

    def project(
        self, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> Tensor:
        """x @ weight.T + bias, plus each token's own low-rank product for the slot's modules.

        The output columns of the slot's modules lie side by side in the order it lists them.
        """
        ...

    def project_onto(
        self, onto: Tensor, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> Tensor:
        """`onto` plus what `project` gives; without gradients `onto` may be written over."""
        return onto + self.project(layer, slot, x, weight, bias)

    def project_apart(
        self, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """What `project` gives as a sum still to be made, for those who read it anyway."""
        return self.project(layer, slot, x, weight, bias), None

    def project_gated(
        self, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> Tensor:
        """silu(first half) · second half of what `project` gives."""
        return swiglu(self.project(layer, slot, x, weight, bias))

    few: bool = False
    """Whether the four below are there, for steps of few tokens over experts. What shrinks may run
    beside all that follows, up to what expands."""

    def shrink_tokens(self, layer: int, slot: str, x: Tensor) -> Tensor | None:
        """Of tokens, by the factor that all experts share. None: nobody has an adapter."""
        raise AssertionError("not asked for where it is not there")

    def expand_pairs(self, layer: int, slot: str, thin: Tensor, routes: FewRoutes) -> Tensor:
        """What is added to gate and up of every pair [pairs, 2 · inner]."""
        raise AssertionError("not asked for where it is not there")

    def shrink_pairs(self, layer: int, slot: str, rows: Tensor, routes: FewRoutes) -> Tensor | None:
        """Of pairs' rows, each by its expert's factor, summed by token. None: likewise."""
        raise AssertionError("not asked for where it is not there")

    def expand_tokens(self, layer: int, slot: str, thin: Tensor, onto: Tensor) -> None:
        """Add to tokens `onto` [N, hidden]."""
        raise AssertionError("not asked for where it is not there")

    def expand(
        self, layer: int, slot: str, x: Tensor, weight: ExpertStack, routes: Routes
    ) -> Tensor:
        """Every row's token [N, in] times its expert's matrix [experts, out, in], plus the
        low-rank product: [rows, out]. Where there are experts this must be there."""
        raise AssertionError("not asked for where it is not there")

    def contract(
        self, layer: int, slot: str, x: Tensor, weight: ExpertStack, routes: Routes
    ) -> Tensor:
        """Every row [rows, in] times its expert's matrix, plus the low-rank product, summed by
        token: [N, out]."""
        raise AssertionError("not asked for where it is not there")


Routed = Callable[[int, Tensor], None]
"""Told of the experts [N, active] that a layer's tokens go to. A layer that is computed again tells
them again."""


class KeptRoutes(NamedTuple):
    """Choices that are not the router's to make: `experts` int64 [N, active] of the tokens that are
    `known` [N]."""

    known: Tensor
    experts: Tensor


Replayed = Callable[[int], KeptRoutes]
"""What is kept of a layer's routes."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass, as the blocks of all its layers see it."""

    attend: Attend  # attention over what the pass holds
    lora: Lora | None  # adapters of its rows; None: the base model
    angles: Sequence[Angles | None]
    """By layer; None where a layer rotates nothing."""
    recur: Recur | None = None  # linear layers over it; None: there are none
    on_routes: Routed | None = None  # told where each token was sent
    replayed: Replayed | None = None  # where each token has to be sent

    def takes_few(self, x: Tensor) -> bool:
        """Whether these tokens are so few that experts are better not sorted for: see
        `kernels.mixtures.few_experts`."""
        if len(x) > FEW_TOKENS or torch.is_grad_enabled() or not runs_triton(x):
            return False
        return self.lora is None or self.lora.few

    def routed(self, layer: int, experts: Tensor) -> None:
        if self.on_routes is not None:
            self.on_routes(layer, experts)

    def kept_routes(self, layer: int) -> KeptRoutes | None:
        return None if self.replayed is None else self.replayed(layer)

    def expand(
        self, layer: int, slot: str, x: Tensor, weight: ExpertStack, routes: Routes
    ) -> Tensor:
        if self.lora is None:
            return products(routes.rows(x), weight, routes)
        return self.lora.expand(layer, slot, x, weight, routes)

    def contract(
        self, layer: int, slot: str, x: Tensor, weight: ExpertStack, routes: Routes
    ) -> Tensor:
        if self.lora is None:
            return routes.combine(products(x, weight, routes))
        return self.lora.contract(layer, slot, x, weight, routes)

    def project(
        self, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> Tensor:
        if self.lora is None:
            return linear(x, weight, bias)
        return self.lora.project(layer, slot, x, weight, bias)

    def project_apart(
        self, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if self.lora is None:
            return linear(x, weight, bias), None
        return self.lora.project_apart(layer, slot, x, weight, bias)

    def project_gated(
        self, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> Tensor:
        if self.lora is None:
            return swiglu(linear(x, weight, bias))
        return self.lora.project_gated(layer, slot, x, weight, bias)

    def project_onto(
        self, onto: Tensor, layer: int, slot: str, x: Tensor, weight: Matrix, bias: Tensor | None
    ) -> Tensor:
        if self.lora is not None:
            return self.lora.project_onto(onto, layer, slot, x, weight, bias)
        return linear_onto(onto, x, weight, bias)
