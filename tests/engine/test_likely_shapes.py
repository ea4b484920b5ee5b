"""Kernels for likely ranks are compiled ahead: a batch of such ranks launches no other ones.

On a machine without a GPU `test_interpreted.py` runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from torch import Tensor

from support.hf_models import save_reference
from support.interpreted import DEVICE, here
from support.training import call, random_datum, train
from tinkex.engine.kernels import lora_cuts
from tinkex.engine.messages import CreateRun, LoraSpec
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.training import passes
from tinkex.engine.training.packing import SOLO_TOKENS
from tinkex.engine.training.passes import Passes
from tinkex.engine.training.trainer import Trainer

_Launch: TypeAlias = "tuple[object, ...]"
NEVER_SPECIALISED = ("layer", "row_count")
KERNELS = ("_shrink", "_expand", "_add_sums")


class Recorded:
    """A kernel that notes what each launch would have it compiled for."""

    def __init__(self, kernel: Any, name: str, seen: set[_Launch]) -> None:
        self._kernel, self._name, self._seen = kernel, name, seen

    def __getitem__(self, grid: object) -> Callable[..., object]:
        def launch(*given: Any, **constants: object) -> object:
            named = zip(self._kernel.arg_names, given, strict=False)
            kinds = [_specialised(value) for name, value in named if name not in NEVER_SPECIALISED]
            self._seen.add((self._name, *kinds, *sorted(constants.items())))
            return self._kernel[grid](*given, **constants)

        return launch


def _specialised(value: Any) -> object:
    """What of an argument Triton compiles another kernel for."""
    return value.dtype if isinstance(value, Tensor) else (value == 1, value % 16 == 0)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[_Launch]:
    from tinkex.engine.kernels import lora_table

    seen: set[_Launch] = set()
    for name in KERNELS:
        monkeypatch.setattr(lora_table, name, Recorded(getattr(lora_table, name), name, seen))
    return seen


@here
@pytest.mark.parametrize(
    ("family", "ranks"),
    [("qwen3", (32, 8)), ("qwen3", (64, 8)), ("qwen3", (3, 1)), ("qwen3-moe", (128, 16))],
)
def test_a_batch_of_likely_ranks_launches_only_what_was_compiled_ahead(
    family: str, ranks: tuple[int, int], launched: set[_Launch], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from tinkex.engine.adapters.grouped import table_slots
    from tinkex.engine.adapters.likely_shapes import launches

    # All is cut in one way here, so small it is. Of more see below.
    monkeypatch.setattr(lora_cuts, "tile_counts", lambda modules: [1])
    monkeypatch.setattr(passes, "runs_triton", lambda _: True)
    monkeypatch.setattr(Passes, "_captured_passes", lambda _: None)
    save_reference(family, tmp_path)
    decoder = load_decoder(tmp_path, DEVICE, torch.float32)
    dtypes = {"dtype": decoder.dtype, "stream": decoder.stream}
    for _ in launches(table_slots(decoder.config), DEVICE, **dtypes, steady=False):
        pass
    known = set(launched)
    launched.clear()
    trainer, rng = Trainer(decoder), np.random.default_rng(0)
    runs = [f"rank {rank}" for rank in ranks]
    for run, rank in zip(runs, ranks, strict=True):
        trainer.create_run(CreateRun("op", run, LoraSpec(rank, seed=0)))
    train(trainer, *(call(run, random_datum(rng, SOLO_TOKENS)) for run in runs))
    assert {name for name, *_ in launched} == set(KERNELS)
    assert launched <= known


@pytest.mark.parametrize("modules", [1, 2, 3, 4])
def test_every_way_to_cut_an_inner_dimension_is_among_them(modules: int) -> None:
    wide = 1 << 20
    ahead = {lora_cuts.slices(n * modules, wide) for n in lora_cuts.tile_counts(modules)}
    assert {lora_cuts.slices(tiles * modules, wide) for tiles in range(1, 400)} == ahead
