"""What a loss is: named inputs and settings, and its terms with their slopes.

A slope is a term's derivative by the logprob. A loss sees flat vectors over cells, one cell per
target (a token, or one of its K alternatives). It is a plain function of logprobs, used twice: in
float32 where the model runs, for the slopes that start the backward pass, and in float64 on the
host, for the metrics of the whole call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

Inputs = Mapping[str, Tensor]
Config = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Terms:
    """Per cell: the loss and its derivative by the logprob. `stats` are metrics by full name."""

    loss: Tensor
    slope: Tensor
    stats: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loss:
    """`inputs` are needed besides `target_tokens`, `optional` ones may be given, all shaped like
    it. A cell whose `live_input` is zero has no slope; with None every cell may have one. With
    `whole_sequence` a cell's terms depend on the other cells of its datum, and `terms` is called
    with one datum at a time."""

    name: str  # its name in requests
    terms: Callable[[Tensor, Inputs, Config], Terms]  # the function that is summed, cell by cell
    inputs: tuple[str, ...]  # inputs that a datum must have
    live_input: str | None  # an input that is zero where a cell has no slope
    optional: tuple[str, ...] = ()  # inputs that it may have
    config: Config = field(default_factory=dict)  # settings and their defaults
    whole_sequence: bool = False  # whether cells of a datum depend on each other
    stats: Callable[[Tensor, Inputs, Config], dict[str, float]] | None = None
    """Further metrics, if there are any."""
