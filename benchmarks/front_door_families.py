"""Families of models as their users get them: `tinkex serve` on a folder of each, both SDKs.

    python benchmarks/front_door_families.py [--small] [--place FOLDER] [--tenants 10]
        [--parts write,used,tenants] [--engine NAME=NUMBER ...] [FAMILY ...]

Seeded weights of true shapes are written as a model folder of that family, and the server is a
process started as the README says. A script trains (its loss must fall), samples at several batch
sizes from what it trained and exports it; then many tenants take turns, each with a run of rank 32
that must be paged where not all fit. `--place` needs room for the largest folder; where it is in
memory, `--forget` gives that back once the engine has the weights. A folder that is there already
is served as it is, and `--parts write` alone leaves it there.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from engine_families import SHAPES, SMALL, TARGETS
from report import Row, write
from sdk_client import RANK, SdkClient
from seeded_model import write_seeded_folder
from served_process import serving

SDKS = {"tinkex": "ours", "tinker": "official SDK"}
STEP = (4, 4096)
NEW = PROMPT = 128
AT_ONCE = (1, 32, 128)


def main() -> None:
    asked = arguments()
    rows: list[Row] = []
    with ExitStack() as stack:
        place = asked.place or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for family in asked.families or SHAPES:
            rows += of_family(family, place / family, asked)
    if not rows:
        return
    note = (
        f"Seeded bfloat16 weights, rank {RANK} on all modules, samples of {PROMPT} + {NEW} tokens "
        "from the run's adapter. What the engine does without server and client: `gpu_families`."
    )
    name = "front_door_families" + ("_small" if asked.small else "")
    write(name, "Families of models through the front door", rows, note)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("families", nargs="*", help=f"of {', '.join(SHAPES)}; all by default")
    parser.add_argument("--small", action="store_true", help="small shapes, to try the script")
    parser.add_argument("--place", type=Path, help="where model folders are written")
    parser.add_argument("--tenants", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", default="write,used,tenants", help="what to do")
    parser.add_argument("--engine", action="append", default=[], help="as `tinkex serve` takes it")
    parser.add_argument("--forget", action="store_true", help="the folder, once it is served")
    return parser.parse_args()


def of_family(family: str, folder: Path, asked: argparse.Namespace) -> list[Row]:
    facts = dict(SHAPES[family])
    if asked.small:
        facts |= {key: value for key, value in SMALL.items() if key in facts}
    here = folder.is_dir()
    if not here:
        where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        write_seeded_folder(facts, folder, where)
    parts = asked.parts.split(",")
    if parts == ["write"]:
        return []
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    begun = time.perf_counter()
    with ExitStack() as stack:
        own = [word for setting in asked.engine for word in ("--engine", setting)]
        server = stack.enter_context(serving("--model", str(folder), *own))
        rows = told([Row(f"{family}: from start to ready", time.perf_counter() - begun, "s")])
        if asked.forget:
            shutil.rmtree(folder)

        def client(sdk: str, key: str) -> SdkClient:
            vocabulary = facts["vocab_size"]
            made = SdkClient(sdk, server.url, f"tml-{key}", folder.name, vocabulary)
            return stack.enter_context(made)

        for sdk, who in SDKS.items() if "used" in parts else ():
            rows += told(used(client(sdk, sdk), family, who, asked))
        if "tenants" in parts and asked.tenants:
            of_both = [list(SDKS)[i % 2] for i in range(asked.tenants)]
            crowd = [client(sdk, f"tenant{i}") for i, sdk in enumerate(of_both)]
            rows += told(taking_turns(crowd, family, step(asked.small)))
    if not here:
        shutil.rmtree(folder, ignore_errors=True)
    return rows


def step(small: bool) -> tuple[int, int]:
    return (4, 128) if small else STEP


def used(client: SdkClient, family: str, who: str, asked: argparse.Namespace) -> list[Row]:
    client.ask("begin")
    losses = client.ask("learn", rounds=6, sequences=4, tokens=30)
    rows = [Row(f"{family}: loss after 6 steps on a batch, {who}", losses[-1], "nats", losses[0])]
    sequences, tokens = step(asked.small)
    took = client.ask("steps", rounds=asked.rounds + 1, sequences=sequences, tokens=tokens,
                      pipelined=True)[1:]  # fmt: skip
    rate = sequences * tokens / statistics.median(took)
    what = f"{family}: training {sequences} × {tokens}, {who}"
    rows.append(Row(what, rate, "tokens/s", higher_is_better=True, target=TARGETS[family]))
    client.ask("tuned")
    for at_once in AT_ONCE[: 1 if asked.small else None]:
        came = client.ask("samples", rounds=3, at_once=at_once, prompt=PROMPT, new=NEW)[1:]
        rate = statistics.median(count / seconds for seconds, count in came)
        what = f"{family}: {at_once} samples at once, {who}"
        rows.append(Row(what, rate, "tokens/s", higher_is_better=True))
    return rows


def taking_turns(crowd: list[SdkClient], family: str, size: tuple[int, int]) -> list[Row]:
    """Every tenant makes a step in turn, twice: the second time its run may have to come back."""
    begun = time.perf_counter()
    for client in crowd:
        client.ask("begin")
    made = (time.perf_counter() - begun) / len(crowd)
    ask: dict[str, Any] = {"sequences": size[0], "tokens": size[1], "pipelined": True, "rounds": 1}
    first = [client.ask("steps", **ask)[0] for client in crowd]
    again = [client.ask("steps", **ask)[0] for client in crowd]
    what = f"{family}: a step of one of {len(crowd)} tenants in turn"
    return [
        Row(f"{family}: a run of one of {len(crowd)} tenants, made", made, "s"),
        Row(f"{what}, first", statistics.median(first), "s"),
        Row(f"{what}, second, median", statistics.median(again), "s"),
        Row(f"{what}, second, slowest", max(again), "s"),
    ]


def told(rows: list[Row]) -> list[Row]:
    """The same, printed at once: a device may be taken away before the table is written."""
    for row in rows:
        print(*row.cells(), sep=" | ", flush=True)
    return rows


if __name__ == "__main__":
    main()
