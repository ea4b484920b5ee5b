"""The messages between a server and an engine. Plain values and numpy buffers.

This is the one package of the engine that the server imports. It knows nothing of torch, HTTP or
tenants, and of files only a folder and the hash of its content, so that messages can be pickled
across any boundary.

A worker takes `Command`s and emits `Event`s. Every command carries an `op` chosen by the sender and
is answered by exactly one `Done` or `Failed` with that `op`; a `Sample` may emit `Progress` before.

Commands of one run take effect in the order they were sent. Commands of different runs may be
packed into one batch; each gets its own result.
"""

from __future__ import annotations

from typing import TypeAlias

from tinkex.engine.messages.data import (
    Csr,
    CustomLoss,
    Datum,
    FloatArray,
    IntArray,
    LoraSpec,
    Routes,
    Tensor,
)
from tinkex.engine.messages.events import (
    Done,
    Event,
    Failed,
    Ping,
    Progress,
    Ready,
    Result,
    Stats,
    Waiting,
)
from tinkex.engine.messages.references import FileLink, WeightsRef
from tinkex.engine.messages.sampling import (
    AnswerForm,
    Cancel,
    DropWeights,
    Grammar,
    LoadWeights,
    Sample,
    SampleResult,
    SamplingControls,
    SamplingParams,
    Sequence,
    Thinking,
    TopK,
)
from tinkex.engine.messages.training import (
    CheckLoss,
    CreateRun,
    DropRun,
    ForwardBackward,
    ForwardBackwardResult,
    LoadRun,
    OptimStep,
    OptimStepResult,
    RunInfo,
    SaveResult,
    SaveRun,
    ServeRun,
)

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

__all__ = [
    "AnswerForm",
    "Cancel",
    "CheckLoss",
    "Command",
    "CreateRun",
    "Csr",
    "CustomLoss",
    "Datum",
    "Done",
    "DropRun",
    "DropWeights",
    "Event",
    "Failed",
    "FileLink",
    "FloatArray",
    "ForwardBackward",
    "ForwardBackwardResult",
    "Grammar",
    "IntArray",
    "LoadRun",
    "LoadWeights",
    "LoraSpec",
    "OptimStep",
    "OptimStepResult",
    "Ping",
    "Progress",
    "Ready",
    "Result",
    "Routes",
    "RunInfo",
    "Sample",
    "SampleResult",
    "SamplingControls",
    "SamplingParams",
    "SaveResult",
    "SaveRun",
    "Sequence",
    "ServeRun",
    "Stats",
    "Tensor",
    "Thinking",
    "TopK",
    "Waiting",
    "WeightsRef",
]
