"""What the outside may say to an engine, and what it answers. Plain values and numpy buffers.

This is the one module of the engine that the server imports. It knows nothing of torch, HTTP,
tenants or files' meaning beyond a folder name, so that it can be pickled across any boundary.

A worker takes `Command`s and emits `Event`s. Every command carries an `op` chosen by the sender and
is answered by exactly one `Done` or `Failed` with that `op`; a `Sample` may emit `Progress` before.

Commands of one run take effect in the order they were sent. Commands of different runs may be
packed into one batch, never mixed in their results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray: TypeAlias = NDArray[np.int32] | NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Csr:
    """A 2-D tensor whose unlisted cells are zero. Indices are int64."""

    values: NDArray[np.float32] | NDArray[np.int64]
    crow: NDArray[np.int64]
    col: NDArray[np.int64]
    shape: tuple[int, int]


Tensor: TypeAlias = NDArray[np.float32] | NDArray[np.int64] | Csr


@dataclass(frozen=True, slots=True)
class Datum:
    """One training sequence: the model's input ids and the loss's named inputs."""

    tokens: IntArray
    inputs: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class LoraSpec:
    rank: int
    seed: int | None = None
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True


@dataclass(frozen=True, slots=True)
class CustomLoss:
    """A traced loss. `inputs` are (name, rank), `logprobs` first; `nodes` is the protocol's list,
    to be checked against the engine's allow-list. `owner` and `digest` tell it from others: losses
    of one owner are evaluated only a few at a time."""

    owner: str
    digest: bytes
    inputs: tuple[tuple[str, int], ...]
    nodes: tuple[Mapping[str, object], ...] = field(repr=False)


# ---- commands about a run's training state


@dataclass(frozen=True, slots=True)
class CreateRun:
    op: str
    run: str
    lora: LoraSpec
    optimizer: str = "adamw"


@dataclass(frozen=True, slots=True)
class ForwardBackward:
    """`custom` is the loss if `loss_fn` is "custom"; it has no settings."""

    op: str
    run: str
    data: tuple[Datum, ...]
    loss_fn: str
    loss_config: Mapping[str, float | str] = field(default_factory=dict)
    forward_only: bool = False
    custom: CustomLoss | None = None


@dataclass(frozen=True, slots=True)
class OptimStep:
    """`params` holds the fields of the protocol's Adam or Dimuon parameters, all present."""

    op: str
    run: str
    optimizer: str
    params: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SaveRun:
    """Write the adapter (PEFT layout) into an existing empty `folder`; with `training` also the
    optimizer, step and accumulated gradients, so that `LoadRun` continues bit for bit."""

    op: str
    run: str
    folder: str
    training: bool


@dataclass(frozen=True, slots=True)
class ServeRun:
    """Make the run's adapter as it is now sampleable as `weights`, at once and from memory. Its
    files will lie in `folder`, which may not be there yet: until it is, nothing is let go."""

    op: str
    run: str
    weights: str
    folder: str


@dataclass(frozen=True, slots=True)
class LoadRun:
    """Replace a run's weights from a folder `SaveRun` wrote; `optimizer` restores its state too,
    otherwise optimizer state and accumulated gradients start afresh. With `create` the run is made
    first with the LoRA settings of the folder and its optimizer family, or the `family` named."""

    op: str
    run: str
    folder: str
    optimizer: bool
    create: bool = False
    family: str | None = None


@dataclass(frozen=True, slots=True)
class DropRun:
    op: str
    run: str


@dataclass(frozen=True, slots=True)
class CheckLoss:
    """Say whether a custom loss can be used. Nothing is kept: calls bring their loss along."""

    op: str
    loss: CustomLoss


# ---- commands about weights that are served


@dataclass(frozen=True, slots=True)
class LoadWeights:
    """Make the adapter in `folder` (PEFT layout) sampleable as `weights`. Loading the same name
    again is a no-op. The base model itself is always there under the name ""."""

    op: str
    weights: str
    folder: str


@dataclass(frozen=True, slots=True)
class DropWeights:
    op: str
    weights: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """`stop=None` means the model's end-of-sequence ids; an empty tuple means never stop early.
    With `stop_at_eos` those ids end a sequence too, beside what `stop` names."""

    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[int | str, ...] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    stop_at_eos: bool = False


@dataclass(frozen=True, slots=True)
class SamplingControls:
    """What steers draws beside the protocol's parameters; the defaults change nothing.

    In this order: only `allowed_tokens` stay; `logit_bias` is added to its tokens' logits;
    `repetition_penalty` divides the logits above 0, and multiplies those below, of every token of
    the prompt or the sample; `frequency_penalty` is taken off for each time a token is in the
    sample, `presence_penalty` once. Then comes the temperature; `min_p` keeps the tokens at least
    that part as likely as the likeliest; top_k and top_p follow. Logprobs in results stay those of
    the model's own distribution, before all of these.
    """

    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_tokens: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Text, one JSON value of a schema (which is given as JSON), text: an answer or a tool call."""

    begin: str = ""
    schema: str = '{"type": "object"}'
    end: str = ""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a sample's text must be: one of the forms, and with a `separator` any number, each but
    the first after it. With `thinking_end` free text up to that comes first.

    A sample ends when its text is complete, or where it may be complete and an end-of-sequence or
    stop id is drawn; before that, those are not drawn."""

    forms: tuple[AnswerForm, ...]
    separator: str | None = None
    thinking_end: str | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """`lane` is whose work this is, any text: lanes get equal parts of the engine."""

    op: str
    weights: str
    prompt: IntArray
    params: SamplingParams
    num_samples: int = 1
    prompt_logprobs: bool = False
    prompt_logprobs_last_n: int | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: Tensor | None = None
    prompt_alt_tokens_k: int = 0
    stream: bool = False
    lane: str = ""
    controls: SamplingControls = field(default_factory=SamplingControls)
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the sample `target`: it answers `Failed` with kind "cancelled" unless already done."""

    op: str
    target: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Answered with the engine's `Stats`."""

    op: str


Command: TypeAlias = (
    CreateRun
    | ForwardBackward
    | OptimStep
    | SaveRun
    | ServeRun
    | LoadRun
    | DropRun
    | CheckLoss
    | LoadWeights
    | DropWeights
    | Sample
    | Cancel
    | Ping
)

# ---- results


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
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SaveResult:
    """Answer to `SaveRun`: what was written."""

    step: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TopK:
    """`ids` and `logprobs` are [rows, k]; an empty cell is id 0 with logprob -99999.0."""

    ids: NDArray[np.int32]
    logprobs: FloatArray


@dataclass(frozen=True, slots=True)
class Sequence:
    tokens: NDArray[np.int32]
    logprobs: FloatArray
    stop_reason: Literal["stop", "length"]
    topk: TopK | None = None


@dataclass(frozen=True, slots=True)
class SampleResult:
    sequences: tuple[Sequence, ...]
    prompt_logprobs: FloatArray | None = None  # NaN where there is none
    topk_prompt_logprobs: TopK | None = None
    target_prompt_logprobs: Tensor | None = None
    alt_tokens: TopK | None = None  # [prompt - 1, k] independent draws
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """`prepared`: whether nothing is left that a first call would have to wait for. `runs_in_host`
    of the runs wait in the host's memory and take `host_bytes` there; `run_moves` were moved."""

    runs: int
    weights: int
    train_tokens: int
    sampled_tokens: int
    prompt_tokens: int
    pages_used: int
    pages_total: int
    adapter_bytes: int
    prepared: bool = True
    runs_in_host: int = 0
    host_bytes: int = 0
    run_moves: int = 0


Result: TypeAlias = (
    RunInfo | ForwardBackwardResult | OptimStepResult | SaveResult | SampleResult | Stats | None
)

# ---- events


@dataclass(frozen=True, slots=True)
class Ready:
    """The first event of a worker: the model is loaded. The facts a server publishes.

    `page_bytes` is what one page of the sampling cache takes, `memory_bytes` what the device has,
    `memory_plan` what that is for. `run_room` is what all runs together may take, device and host
    (None: not bounded), `rank_bytes` what one takes for each of its ranks, all modules trained.
    """

    architecture: str
    vocab_size: int
    max_context: int
    parameters: int
    device: str
    dtype: str
    max_rank: int
    page_bytes: int = 0
    memory_bytes: int | None = None
    memory_plan: Mapping[str, int] = field(default_factory=dict)
    run_room: int | None = None
    rank_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """New tokens of one sequence of a streamed sample, with the likeliest in their places if the
    sample asks for those."""

    op: str
    index: int
    tokens: NDArray[np.int32]
    logprobs: FloatArray
    topk: TopK | None = None


@dataclass(frozen=True, slots=True)
class Done:
    op: str
    result: Result
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """The command changed nothing. `user` mistakes name the field, the limit and the fix; `lost`
    says that the engine has no such run, which its sender has to rebuild."""

    op: str
    kind: Literal["user", "server", "cancelled", "lost"]
    message: str


Event: TypeAlias = Ready | Progress | Done | Failed
