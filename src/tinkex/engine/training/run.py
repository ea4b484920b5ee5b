"""Everything a run is, and how it is copied, written and restored bit for bit.

A snapshot is a copy: training may go on while it is written. A folder holds the adapter in PEFT's
layout, `run.json` with the settings, and for a training checkpoint `training.safetensors` with the
optimizer's state and the gradients accumulated since the last step. A run draws no random numbers
after its adapter was made, so its seed is all of its random state.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from tinkex.engine.adapters.layout import Adapter, AdapterLayout, AdapterWeights, check_fit
from tinkex.engine.adapters.peft_files import reading_adapter, refuse_unfinite, write_adapter
from tinkex.engine.adapters.tensor_files import read_tensors
from tinkex.engine.errors import UserError
from tinkex.engine.messages import LoraSpec, RunInfo, SaveResult
from tinkex.engine.own_folder import OwnFolder
from tinkex.engine.pieces import Pieces
from tinkex.engine.to_host import mark, to_host
from tinkex.engine.training.optimizers import Bounds, Optimizer

RUN = "run.json"
TRAINING = "training.safetensors"
_GRADIENT = "gradient"


LARGEST_GRADIENT = 1e18
"""An accumulated gradient's norm stays below this, so that its squares are finite in float32."""


@dataclass(slots=True, eq=False)
class Run:
    """One fine-tuning in progress. `gathered` and `bounds` only decide how carefully the next step
    is made."""

    adapter: Adapter  # its weights
    optimizer: Optimizer  # its family and state
    step: int = 0  # optimizer steps taken
    gradient: Tensor | None = None  # None if nothing was accumulated since a step
    gathered: float = 0.0  # upper bound of the gradient's norm
    bounds: Bounds | None = None  # bounds of weights and mean; None: they have to be measured

    def gather(self, gradient: Tensor, norm: float) -> None:
        """Add a call's gradient, all of it or nothing. The run keeps `gradient`."""
        if self.gathered + norm > LARGEST_GRADIENT:
            raise UserError(
                f"the gradients gathered since the last optim_step would have a norm over "
                f"{LARGEST_GRADIENT:g}; nothing was added. Check weights and advantages for "
                "extreme values, or send an optim_step first"
            )
        self.gradient = gradient if self.gradient is None else self.gradient.add_(gradient)
        self.gathered += norm

    @property
    def info(self) -> RunInfo:
        return RunInfo(self.adapter.layout.spec, self.optimizer.name, self.step)

    @property
    def nbytes(self) -> int:
        own = sum(tensor.nbytes for tensor in self.optimizer.tensors.values())
        gradient = 0 if self.gradient is None else self.gradient.nbytes
        return self.adapter.nbytes + own + gradient


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment; the copy is complete once the event `made` has happened. `master` is its
    adapter's vector, `training` holds what only a training checkpoint needs."""

    info: RunInfo
    layout: AdapterLayout
    master: Tensor
    training: dict[str, Tensor] | None
    made: torch.cuda.Event | None

    def weights(self) -> AdapterWeights:
        """The adapter's weights in the host's memory."""
        modules = self.layout.modules(to_host(self.master, self.made))
        return AdapterWeights(self.layout.spec.rank, self.layout.scaling, modules)


def take_snapshot(run: Run, training: bool) -> Snapshot:
    tensors, master, layout = None, run.adapter.master, run.adapter.layout
    if training:
        tensors = {name: _copy(layout, tensor) for name, tensor in run.optimizer.tensors.items()}
        if run.gradient is not None:
            tensors[_GRADIENT] = _copy(layout, run.gradient)
    copy = _copy(layout, master)
    return Snapshot(run.info, layout.whole, copy, tensors, mark(master.device))


def _copy(layout: AdapterLayout, vector: Tensor) -> Tensor:
    """A copy of the whole vector, whatever part of it is on this rank."""
    whole = layout.shares.joined(vector)
    return whole.clone() if whole is vector else whole


def save(snapshot: Snapshot, folder: str) -> SaveResult:
    """Write into the sender's folder, or into the answer if this host has no such folder."""
    if Path(folder).is_dir():
        return write_snapshot(snapshot, folder)
    with OwnFolder("tinkex-saved-") as own:
        written = write_snapshot(snapshot, own)
        files = {path.name: np.fromfile(path, np.uint8) for path in sorted(own.iterdir())}
    return replace(written, files=files)


def write_snapshot(snapshot: Snapshot, folder: str | Path) -> SaveResult:
    """Write into an existing folder. Touches nothing of the run; any thread may do it."""
    path = Path(folder)
    if not path.is_dir():
        raise UserError(f"folder: {str(path)!r} is not an existing folder")
    write_adapter(snapshot.weights(), path)
    info = snapshot.info
    facts = {
        "version": 1,
        "lora": asdict(info.lora),
        "optimizer": info.optimizer,
        "step": info.step,
    }
    (path / RUN).write_text(json.dumps(facts, indent=2) + "\n")
    if snapshot.training is not None:
        tensors = {k: to_host(t, snapshot.made) for k, t in snapshot.training.items()}
        save_file(tensors, str(path / TRAINING))
    size = sum(file.stat().st_size for file in path.iterdir())
    return SaveResult(info.step, size)


def read_info(folder: str | Path) -> RunInfo:
    """The settings of the run that a folder was saved from."""
    path = Path(folder) / RUN
    try:
        facts = json.loads(path.read_text())
        if facts["version"] != 1:
            raise UserError(f"{RUN}: version {facts['version']!r} is not known, only 1")
        return RunInfo(LoraSpec(**facts["lora"]), str(facts["optimizer"]), int(facts["step"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{RUN} cannot be read: {type(error).__name__} {error}") from None


def restore(run: Run, folder: str | Path, optimizer: bool) -> Pieces[None]:
    """Replace the run's weights, and with `optimizer` its optimizer, step and accumulated gradient.
    Everything is read and checked first; a folder that does not fit changes nothing."""
    path, device = Path(folder), run.adapter.master.device
    weights = yield from reading_adapter(path, device)
    layout = run.adapter.layout
    check_fit(layout.whole, weights)
    state, step = _fresh(run), 0
    if optimizer:
        info = read_info(path)
        if info.optimizer != run.optimizer.name:
            raise UserError(
                f"optimizer: the checkpoint's is {info.optimizer}, the run's {run.optimizer.name}"
            )
        state, step = (yield from _read_training(run, path)), info.step
    gradient = state.pop(_GRADIENT, None)
    gathered = 0.0 if gradient is None else float(layout.shares.norm(gradient))
    run.adapter.load(weights)
    run.gradient, run.gathered, run.bounds = gradient, gathered, None
    run.optimizer.tensors.update(state)
    run.step = step


def _fresh(run: Run) -> dict[str, Any]:
    return {name: torch.zeros_like(tensor) for name, tensor in run.optimizer.tensors.items()}


def _read_training(run: Run, folder: Path) -> Pieces[dict[str, Any]]:
    if not (folder / TRAINING).is_file():
        raise UserError(
            "the checkpoint has no optimizer state; load its weights alone, or a full checkpoint"
        )
    device, layout = run.adapter.master.device, run.adapter.layout
    try:
        tensors: dict[str, Any] = yield from read_tensors(folder / TRAINING, device)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{TRAINING} cannot be read: {error}") from None
    wanted = run.optimizer.tensors.keys()
    sizes = {tensor.numel() for tensor in tensors.values()}
    if tensors.keys() - {_GRADIENT} != wanted or sizes != {layout.whole.size}:
        raise UserError(f"{TRAINING} does not hold the state of {run.optimizer.name} for this run")
    refuse_unfinite(tensors, TRAINING, "load the weights alone, or an earlier checkpoint")
    return {name: layout.shares.own(tensor) for name, tensor in tensors.items()}
