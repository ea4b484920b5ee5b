"""Runs every exercise with one SDK against one server. A script, because the official client leaves
sockets open and would disturb other tests of the same process.

    python drive.py official|tinkex BASE_URL MODEL REPORT

The report is JSON: each method with null, or what went wrong.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from compat.exercises import EXERCISES
from compat.world import World


def main(sdk: str, base_url: str, model: str, report: str) -> None:
    module = importlib.import_module("tinker" if sdk == "official" else sdk)
    world = World(module, base_url, model, f"tml-compat-{sdk}-{len(base_url)}")
    found = {method: attempt(world, method) for method in EXERCISES}
    world.close()
    Path(report).write_text(json.dumps(found), encoding="utf-8")


def attempt(world: World, method: str) -> str | None:
    try:
        EXERCISES[method](world)
    except Exception:
        return traceback.format_exc(limit=-6)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
