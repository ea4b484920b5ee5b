"""Every operation a custom loss may use, on extreme values: what kills a process, what hangs it.

`python -m fuzz.losses SEED COUNT` evaluates COUNT random calls of each operation in forked
processes, and prints which calls ended one, as JSON: {operation: arguments}. A fork takes longer
than an operation's calls, so that several share one; if it ends, each gets one of its own.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from support.losses import LOGPROBS, graph, node
from tinkex.engine.errors import UserError
from tinkex.engine.losses.custom.arithmetic import Work, evaluate
from tinkex.engine.losses.custom.child import load_shapes
from tinkex.engine.losses.custom.graph import Graph
from tinkex.engine.losses.custom.operations import FUNCTIONS, METHODS

CPU_S = 60
TOGETHER = 16
Operation: TypeAlias = tuple[str, str]
"""How it is called, and its name."""

LOWEST = {torch.int64: -(2**63), torch.int32: -(2**31)}


def _values() -> dict[str, torch.Tensor]:
    """Tensors no loss should meet, by name."""
    inf = float("inf")
    found = {
        "infinite": torch.tensor([inf, -inf]),
        "undefined": torch.tensor([float("nan"), -0.0]),
        "far": torch.tensor([3e38, 1e-45]),
        "double": torch.tensor([1e308, 5e-324], dtype=torch.float64),
        "half": torch.tensor([6e4, 6e-8], dtype=torch.float16),
        "brain": torch.tensor([3e38, -1.0], dtype=torch.bfloat16),
        "square": torch.tensor([[1.0, inf], [-1e38, 0.0]]),
        "mask": torch.tensor([True, False]),
        "none": torch.zeros(0),
        "none2": torch.zeros(0, 3),
        "scalar": torch.tensor(-1.0),
        "wide": torch.ones(1, 1).expand(64, 64),
        "places": torch.tensor([[0, 1], [1, 0]]),
    }
    for dtype, lowest in LOWEST.items():
        for name, numbers in {"low": [lowest] * 2, "minus": [-1, -1], "zero": [0, 0],
                              "high": [-(lowest + 1)] * 2}.items():  # fmt: skip
            found[f"{name}_{dtype.itemsize}"] = torch.tensor(numbers, dtype=dtype)
    return found


VALUES = _values()
NUMBERS = (0, 1, -1, 2, 2**31, 2**53, -(2**53), 0.5, -0.0, 1e308, True, None)
LISTS: tuple[Any, ...] = ([], [0], [2, -1], [1 << 12], [[0, 1], [1, 0]], [[0] * 50] * 50)
TEXTS = ("floor", "trunc", "sum", "none", "fro", "tanh", "meta")
KEYWORDS: Mapping[str, tuple[Any, ...]] = {
    "dim": (0, -1, 1, 2**40, None, [0, 1]),
    "rounding_mode": ("floor", "trunc", None),
    "keepdim": (True,),
    "dtype": ({"dtype": "int32"}, {"dtype": "float16"}, {"dtype": "bool"}),
    "reduction": ("none", "sum"),
}


def make_graph(operation: Operation, dice: random.Random) -> list[dict[str, Any]]:
    op, target = operation
    args = [_argument(dice) for _ in range(dice.choice((1, 1, 2, 2, 2, 3)))]
    args[0] = {"ref": dice.choice(list(VALUES))} if dice.random() < 0.9 else args[0]
    if "getitem" in target and dice.random() < 0.5:
        args = [args[0], {"tuple": [_argument(dice) for _ in range(dice.choice((1, 2, 3)))]}]
    kwargs = {}
    if dice.random() < 0.4:
        name = dice.choice(list(KEYWORDS))
        kwargs[name] = dice.choice(KEYWORDS[name])
    made = node(target, *args, op=op, name="made", **kwargs)
    used = [name for name in VALUES if f"'{name}'" in repr(args)]
    return graph(made, node("torch.sum", LOGPROBS), inputs=["logprobs", *used])


def _argument(dice: random.Random) -> Any:
    kind = dice.random()
    if kind < 0.65:
        return {"ref": dice.choice(list(VALUES))}
    if kind < 0.85:
        return dice.choice(NUMBERS)
    if kind < 0.9:
        return {"slice": [dice.choice((None, 0, -1, 2**40)) for _ in range(3)]}
    return dice.choice(LISTS if kind < 0.97 else TEXTS)


def operations() -> list[Operation]:
    functions = [("call_function", name) for name in FUNCTIONS if not name.startswith("_")]
    return functions + [("call_method", name) for name in METHODS]


def try_one(nodes: list[dict[str, Any]]) -> bool:
    """Whether the graph could be evaluated; anything but a value and a refusal is raised."""
    try:
        names = [each["name"] for each in nodes if each["op"] == "placeholder"]
        checked = Graph([(name, 1) for name in names], nodes, 100)
        values = {**VALUES, "logprobs": torch.zeros(3, requires_grad=True)}
        evaluate(checked, values, Work(1 << 31), lambda _: None)
    except UserError:
        return False
    return True


def attack(together: Sequence[Operation], seed: int, count: int) -> tuple[int, str | None]:
    """How many of the calls could be evaluated, and the arguments of one that ended the process."""
    mine, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(mine)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S * len(together),) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for operation in together:
            _attack_here(operation, seed, count, lambda text: _tell(theirs, text))
        os._exit(0)
    os.close(theirs)
    with os.fdopen(mine) as stream:
        lines = stream.read().splitlines()
    _, status = os.waitpid(child, 0)
    done = sum(line == "+" for line in lines)
    return done, None if status == 0 else f"{lines[-1]} (status {status})"


def _tell(pipe: int, text: str) -> None:
    os.write(pipe, text.encode() + b"\n")


def _attack_here(operation: Operation, seed: int, count: int, say: Callable[[str], object]) -> None:
    dice = random.Random(f"{seed} {operation}")
    for _ in range(count):
        nodes = make_graph(operation, dice)
        say(json.dumps([nodes[-3]["args"], nodes[-3]["kwargs"]])[:2000])
        if try_one(nodes):
            say("+")


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    load_shapes()
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    every, deadly, evaluated = operations(), {}, 0
    for first in range(0, len(every), TOGETHER):
        together = every[first : first + TOGETHER]
        done, last = attack(together, seed, count)
        if last is None:
            evaluated += done
            continue
        for operation in together:
            done, last = attack([operation], seed, count)
            evaluated += done
            if last is not None:
                deadly[operation[1]] = last
    print(json.dumps({"evaluated": evaluated, "deadly": deadly}))


if __name__ == "__main__":
    main()
