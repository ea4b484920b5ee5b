"""Overload through the door: a small tenant's steps beside others that ask for all they can get.

    python benchmarks/overload.py [--small] [--folder FOLDER] [--seconds 20]

`tinkex serve` as a process, every tenant one too, with our SDK. Beside the small one in turn: steps
over one long sequence; more runs of a high rank than fit, taking turns; a burst of long prompts. At
the end what is too long for the model is asked for, and whether any engine died.
Qwen3-8B's shape with seeded weights; `--small` is a built-in model, for a CPU.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from front_door_gpu import QWEN3_8B
from report import write_table
from sdk_client import MODEL, VOCABULARY, SdkClient
from seeded_model import write_seeded_folder
from served_process import serving

TARGET_MS = 300

SETTLE_S = 20
"""Idle time, as users leave it: an engine on a GPU captures its graphs then."""

Load = tuple[str, str, dict[str, Any]]


def loads(small: bool, seconds: float) -> list[Load]:
    """What it is called, what another tenant is told, and how much of it."""
    length, runs, rank, prompts, prompt = (
        (1500, 12, 64, 8, 512) if small else (32768, 12, 128, 64, 8192)
    )
    many = {"runs": runs, "rank": rank, "seconds": seconds, "sequences": 1, "tokens": 512}
    burst = {"rounds": 1, "at_once": prompts, "prompt": prompt, "new": 64}
    return [
        (f"steps over 1 × {length:,}", "steps_for",
         {"seconds": seconds, "sequences": 1, "tokens": length}),
        (f"{runs} runs of rank {rank} in turn", "many_runs", many),
        (f"a burst of {prompts} prompts of {prompt:,}", "samples", burst),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="a built-in model, for a CPU")
    parser.add_argument("--folder", type=Path, help="keep the seeded model here for another time")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    asked = parser.parse_args()
    with ExitStack() as stack:
        model, vocabulary = MODEL, VOCABULARY
        if not asked.small:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            model, vocabulary = seeded(asked.folder or place / "seeded-8b")
        server = stack.enter_context(serving("--model", model))
        name = MODEL if asked.small else Path(model).name
        small, hungry = (
            stack.enter_context(SdkClient("tinkex", server.url, f"tml-{key}", name, vocabulary))
            for key in ("small", "hungry")
        )
        rows = measured(small, hungry, loads(asked.small, asked.seconds), asked.seconds)
        said = hungry.ask("refused", tokens=200_000)
        rows.append(("a sequence of 200,000 tokens", said[:160], "", ""))
        rows.append(("engines that died", f"{deaths(server.url)}", "", "0"))
    headings = (
        "a small tenant's step, forward_backward and optim_step",
        "middle",
        "worst",
        "target",
    )
    write_table("overload" + ("_small" if asked.small else ""), "Overload", headings, rows)


def seeded(folder: Path) -> tuple[str, int]:
    if not folder.is_dir():
        write_seeded_folder(QWEN3_8B, folder, torch.device("cuda"))
        torch.cuda.empty_cache()
    return str(folder), int(QWEN3_8B["vocab_size"])


def measured(
    small: SdkClient, hungry: SdkClient, wanted: list[Load], seconds: float
) -> list[tuple[str, str, str, str]]:
    small.ask("begin")
    hungry.ask("begin")
    time.sleep(SETTLE_S)
    own = {"seconds": seconds / 2, "sequences": 1, "tokens": 31}
    small.ask("timed_steps", **own)
    rows = [said("alone", small.ask("timed_steps", **own))]
    for name, what, arguments in wanted:
        hungry.tell(what, **arguments)
        small.ask("timed_steps", seconds=1.0, sequences=1, tokens=31)  # until it is under way
        rows.append(said(f"beside {name}", small.ask("timed_steps", **own)))
        hungry.answer()
    return rows


def said(what: str, times: list[float]) -> tuple[str, str, str, str]:
    middle, worst = 1e3 * statistics.median(times), 1e3 * max(times)
    print(f"{what}: {middle:.0f} ms, at worst {worst:.0f}, of {len(times)}", flush=True)
    return (
        what,
        f"{middle:.0f} ms",
        f"{worst:.0f} ms",
        "" if what == "alone" else f"≤ {TARGET_MS} ms",
    )


def deaths(url: str) -> int:
    """Of all engines since the server started."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    counted = [line for line in lines if line.startswith("tinkex_engine_deaths_total{")]
    assert counted, "the server no longer counts its engines' deaths under this name"
    return int(sum(float(line.split()[-1]) for line in counted))


if __name__ == "__main__":
    main()
