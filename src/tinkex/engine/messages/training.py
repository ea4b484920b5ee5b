"""Commands about a run's training state, and their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tinkex.engine.messages.data import CustomLoss, Datum, LoraSpec
from tinkex.engine.messages.references import WeightsRef


@dataclass(frozen=True, slots=True)
class CreateRun:
    """Make a run with fresh adapters and optimizer state."""

    op: str
    run: str
    lora: LoraSpec
    optimizer: str = "adamw"


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """Losses and gradients of some data. A custom loss has no settings."""

    op: str  # names the command, for its answer
    run: str  # whose adapters are used
    data: tuple[Datum, ...]  # in the order of the answer
    loss_fn: str  # a built-in one, or "custom"
    loss_config: Mapping[str, float | str] = field(default_factory=dict)  # its settings
    forward_only: bool = False  # no gradient is added
    custom: CustomLoss | None = None  # the loss itself, if it is a custom one
    context: int | None = None  # most tokens of a datum; None: as many as the model allows


@dataclass(frozen=True, slots=True)
class OptimStep:
    """`params` holds the fields of the protocol's Adam or Dimuon parameters, all present."""

    op: str
    run: str
    optimizer: str
    params: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SaveRun:
    """Write the adapter (PEFT layout) into the empty `folder`; with `training` also the optimizer,
    step and accumulated gradients, so that `LoadRun` continues bit for bit. The folder is on the
    sender's host: a worker elsewhere sends the files with its answer."""

    op: str
    run: str
    folder: str
    training: bool


@dataclass(frozen=True, slots=True)
class ServeRun:
    """Make the run's current adapter sampleable as `weights`, at once and from memory. Its files
    will be in `folder`, which may not exist yet; until it does, the weights stay in memory."""

    op: str
    run: str
    weights: str
    folder: str


@dataclass(frozen=True, slots=True)
class LoadRun:
    """Replace a run's weights from what `SaveRun` wrote."""

    op: str  # the command's name, for its answer
    run: str  # whose weights are replaced
    source: WeightsRef  # what `SaveRun` wrote
    optimizer: bool  # also restore its optimizer; otherwise that and gradients start afresh
    create: bool = False  # create the run first, with the LoRA settings of the source
    family: str | None = None  # family of its optimizer then; None: as in the source


@dataclass(frozen=True, slots=True)
class DropRun:
    """Free the memory of a run."""

    op: str
    run: str


@dataclass(frozen=True, slots=True)
class CheckLoss:
    """Check whether a custom loss can be used. Nothing is kept: calls bring their loss along."""

    op: str
    loss: CustomLoss


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Answer to `CreateRun` and `LoadRun`."""

    lora: LoraSpec
    optimizer: str
    step: int


@dataclass(frozen=True, slots=True)
class ForwardBackwardResult:
    """Per datum, in order, the loss's named outputs (always `logprobs`, shaped like
    `target_tokens`); metrics are named `name:reducer` and always hold `loss:sum`."""

    outputs: tuple[Mapping[str, NDArray[np.float32]], ...]
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class OptimStepResult:
    """Answer to `OptimStep`."""

    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SaveResult:
    """Answer to `SaveRun`: what was written; `files` by name where the folder was out of reach."""

    step: int
    size_bytes: int
    files: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict, repr=False)
