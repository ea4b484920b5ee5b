"""Compares every family of models on this machine's device with the CPU's plain operations.

    python scripts/check_families.py [FAMILY ...]
    TRITON_INTERPRET=1 python scripts/check_families.py olmo3

Float32, small seeded models, adapters of three ranks in one batch: logprobs and gradients of a
training pass against float64 on the CPU, where the CPU's float32 may be as far away; and what is
sampled, with captured graphs and without, against the CPU's sampler and against the trainer. The
first thing to run on a new card. Under Triton's interpreter the kernels run on the CPU, all but
captured graphs. Ends with 1 where anything is apart.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:  # before anybody asks: then kernels take the CPU's tensors
    from tinkex.engine.kernels import available

    available.runs_triton = lambda _: True

from support.hf_models import BLOCK_FAMILIES, FAMILIES, save_reference
from support.sampling import make_sampler, prompt_of, results_of, sample
from support.training import call, gradient, random_datum, train
from tinkex.engine.messages import CreateRun, Datum, LoraSpec
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.training.trainer import Trainer

if INTERPRETED:  # graphs are a card's own
    from tinkex.engine.training.passes import Passes

    Passes._captured_passes = lambda _: None

TOLERANCE = 1e-4
LENGTHS = {8: (1, 17, 70), 16: (64, 3), 32: (65, 30)}
"""By rank: a run's sequences."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("families", nargs="*", default=[*FAMILIES, *BLOCK_FAMILIES])
    passed = True
    for family in parser.parse_args().families:
        with tempfile.TemporaryDirectory() as folder:
            save_reference(family, Path(folder))
            found = differences(Path(folder))
        told = "  ".join(f"{name} {value:.1e}" for name, (value, _) in found.items())
        print(f"{family:22} {told}", flush=True)
        passed = passed and all(value <= most for value, most in found.values())
    return int(not passed)


def differences(folder: Path) -> dict[str, tuple[float, float]]:
    """The largest of each kind, infinite where tokens differ, and the most that passes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    own = load_decoder(folder, device, torch.float32)
    plain = _plainly(lambda: load_decoder(folder, "cpu", torch.float32))
    wide = _plainly(lambda: _trained(load_decoder(folder, "cpu", torch.float64)))
    here, there = _apart_trained(_trained(own), wide), _plainly(lambda: _trained(plain))
    graphs, loose = _sampled(own, folder), _sampled(own, folder, graphs=False)
    wanted = _plainly(lambda: _sampled(plain, folder))
    allowed = [max(TOLERANCE, 2 * apart) for apart in _apart_trained(there, wide)]
    return {
        "logprobs": (here[0], allowed[0]),
        "gradients": (here[1], allowed[1]),
        "sampled": (_apart_samples(graphs, wanted), TOLERANCE),
        "without graphs": (_apart_samples(loose, wanted), TOLERANCE),
        "sampler against trainer": (_against_trainer(own, graphs), TOLERANCE),
    }


Trained = tuple[list[Any], list[torch.Tensor]]
"""Logprobs, and the gradient of each run."""


def _apart_trained(found: Trained, wanted: Trained) -> tuple[float, float]:
    pairs = zip(found[1], wanted[1], strict=True)
    return _apart(found[0], wanted[0]), max(float((a - b).norm() / b.norm()) for a, b in pairs)


def _plainly(work: Any) -> Any:
    """What it gives without kernels."""
    if not INTERPRETED:
        return work()
    from unittest.mock import patch

    names = [
        n for n, m in sys.modules.items() if n.startswith("tinkex.") and hasattr(m, "runs_triton")
    ]
    patches = [patch(f"{name}.runs_triton", lambda _: False) for name in names]
    for each in patches:
        each.start()
    try:
        return work()
    finally:
        for each in patches:
            each.stop()


def _trained(decoder: Decoder) -> Trained:
    trainer, rng = Trainer(decoder), np.random.default_rng(5)
    data = {f"r{r}": [random_datum(rng, n) for n in own] for r, own in LENGTHS.items()}
    for rank in LENGTHS:
        trainer.create_run(CreateRun("op", f"r{rank}", LoraSpec(rank, seed=rank)))
        adapter = trainer._find(f"r{rank}").adapter
        generator = torch.Generator().manual_seed(1)
        for _, b in adapter.layout.modules(adapter.master).values():
            b.copy_(torch.randn(b.shape, generator=generator) * 0.05)
        adapter.refresh()
    results = train(trainer, *(call(run, *own) for run, own in data.items()))
    outputs = [output["logprobs"] for result in results for output in result.outputs]
    return outputs, [gradient(trainer, run) for run in data]


def _sampled(decoder: Decoder, folder: Path, *, graphs: bool = True) -> list[Any]:
    sampler = make_sampler(decoder, folder)
    if not graphs:
        sampler._graphs = None
    asked = [
        sample(f"s{i}", prompt_of(i, length), temperature=(0.0, 1.0)[i % 2], seed=i, max_tokens=24)
        for i, length in enumerate((1, 45, 70, 16))
    ]
    results = results_of(sampler, *asked)
    return [(c.prompt, r.sequences[0]) for c, r in zip(asked, results, strict=True)]


def _against_trainer(decoder: Decoder, samples: list[Any]) -> float:
    """The trainer's logprobs of what was sampled, from a run whose adapter adds nothing."""
    trainer = Trainer(decoder)
    trainer.create_run(CreateRun("op", "run", LoraSpec(4, seed=1)))
    data = []
    for prompt, sequence in samples:
        whole = np.concatenate([prompt, sequence.tokens]).astype(np.int64)
        weights = np.ones(len(whole) - 1, np.float32)
        data.append(Datum(whole[:-1], {"target_tokens": whole[1:], "weights": weights}))
    (result,) = train(trainer, call("run", *data, forward_only=True))
    pairs = zip(result.outputs, samples, strict=True)
    return max(
        float(np.abs(output["logprobs"][len(prompt) - 1 :] - sequence.logprobs).max())
        for output, (prompt, sequence) in pairs
    )


def _apart(here: list[Any], there: list[Any]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(here, there, strict=True))


def _apart_samples(here: list[Any], there: list[Any]) -> float:
    for (_, one), (_, other) in zip(here, there, strict=True):
        if one.tokens.tolist() != other.tokens.tolist():
            return float("inf")
    return _apart([one.logprobs for _, one in here], [other.logprobs for _, other in there])


if __name__ == "__main__":
    sys.exit(main())
