"""The same model, prompt and parameters through the official SDK and through ours, on one server.

    python scripts/parity.py                                     starts a server of its own
    python scripts/parity.py --base-url http://127.0.0.1:8000    any server of this API

Each library runs in a process of its own. Results are similar, not bit-identical; the script exits
with 1 when prompt logprobs or losses differ by more than --tolerance.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import serving

SDKS = ("tinker", "tinkex")
DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
TRAINED_TEXT = "The lighthouse of Varn has ninety-one steps."


def main() -> int:
    options = _parse()
    if options.sdk:
        print(json.dumps(measure(options)))
        return 0
    if options.base_url:
        return compare(options)
    with serving.served([options.model]) as server:
        options.base_url = server.address
        return compare(options)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", help="the server both libraries talk to")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--prompt", default="The capital of France is")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--sdk", choices=SDKS, help=argparse.SUPPRESS)
    return parser.parse_args()


# ---- one library


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """What `options.sdk` gets from the server. The same lines for both libraries."""
    sdk = importlib.import_module(options.sdk)
    start = time.perf_counter()
    service = sdk.ServiceClient(base_url=options.base_url)
    training = service.create_lora_training_client(options.model, rank=8, seed=options.seed)
    tokenizer = training.get_tokenizer()
    sampler = service.create_sampling_client(base_model=options.model)
    prompt = sdk.ModelInput.from_ints(tokenizer.encode(options.prompt))
    found = {
        "sdk": f"{options.sdk} {sdk.__version__}",
        "logprobs": sampler.compute_logprobs(prompt).result()[1:],
        "greedy": _sample(sdk, sampler, prompt, tokenizer, options, temperature=0.0),
        "seeded": _sample(sdk, sampler, prompt, tokenizer, options, temperature=1.0),
        "losses": _losses(sdk, training, tokenizer.encode(TRAINED_TEXT), options.steps),
    }
    service.close("success").result()
    return {**found, "seconds": time.perf_counter() - start}


def _sample(
    sdk: Any,
    sampler: Any,
    prompt: Any,
    tokenizer: Any,
    options: argparse.Namespace,
    temperature: float,
) -> str:
    params = sdk.SamplingParams(
        max_tokens=options.max_tokens, temperature=temperature, seed=options.seed
    )
    sequence = sampler.sample(prompt, 1, params).result().sequences[0]
    return str(tokenizer.decode(sequence.tokens))


def _losses(sdk: Any, training: Any, tokens: list[int], steps: int) -> list[float]:
    datum = sdk.Datum(
        model_input=sdk.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
    )
    losses = []
    for _ in range(steps):
        gradients = training.forward_backward([datum], "cross_entropy")
        training.optim_step(sdk.AdamParams(learning_rate=1e-3)).result()
        losses.append(gradients.result().metrics["loss:sum"] / (len(tokens) - 1))
    return losses


# ---- both


def compare(options: argparse.Namespace) -> int:
    theirs, ours = (_run_apart(sdk, options) for sdk in SDKS)
    for side in (theirs, ours):
        _show(side)
    logprobs = _largest_difference(theirs["logprobs"], ours["logprobs"])
    losses = _largest_difference(theirs["losses"], ours["losses"])
    print(f"prompt logprobs differ by at most {logprobs:.1e}")
    print(f"losses differ by at most          {losses:.1e}")
    print(f"greedy samples are {_same(theirs, ours, 'greedy')}")
    print(f"seeded samples are {_same(theirs, ours, 'seeded')}")
    agreed = max(logprobs, losses) <= options.tolerance
    print("agreed" if agreed else f"NOT agreed within {options.tolerance}")
    return 0 if agreed else 1


def _run_apart(sdk: str, options: argparse.Namespace) -> dict[str, Any]:
    given = {name: value for name, value in vars(options).items() if name != "sdk"}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    environ = {"TINKER_API_KEY": "tml-parity", "TINKER_TELEMETRY": "0", **os.environ}
    if options.base_url.startswith("http://127.0.0.1"):
        environ["HF_HUB_OFFLINE"] = "1"  # a server on this machine names a local tokenizer
    child = subprocess.run(
        [sys.executable, __file__, f"--sdk={sdk}", *flags],
        stdout=subprocess.PIPE,
        env=environ,
        text=True,
        check=False,
    )
    # Not the exit status: the official SDK now and then aborts as its process ends, all work done.
    if not (printed := child.stdout.splitlines()):
        raise SystemExit(f"{sdk} failed; its error is above")
    result: dict[str, Any] = json.loads(printed[-1])
    return result


def _show(side: dict[str, Any]) -> None:
    print(f"{side['sdk']} ({side['seconds']:.1f} s in all)")
    print(f"  greedy   {side['greedy']!r}")
    print(f"  seeded   {side['seeded']!r}")
    print(f"  logprobs {' '.join(f'{value:.4f}' for value in side['logprobs'])}")
    print(f"  losses   {' '.join(f'{value:.4f}' for value in side['losses'])}\n")


def _largest_difference(first: list[float], second: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(first, second, strict=True))


def _same(theirs: dict[str, Any], ours: dict[str, Any], kind: str) -> str:
    return "the same" if theirs[kind] == ours[kind] else "different"


if __name__ == "__main__":
    sys.exit(main())
