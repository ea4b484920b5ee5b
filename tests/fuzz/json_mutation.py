"""Changes a JSON text as JSON: a value swapped, dropped, doubled, renamed or put somewhere else.

Changed bytes rarely leave JSON that can be read; this reaches what lies behind the parser.
"""

from __future__ import annotations

import json
import random
from typing import Any

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53 + 1, -(2**63), 2**63, 2**64, 10**400, 1e308),
    *(0.5, -0.0, 5e-324, "", " ", "x", "0", "\x00", "\ud800", "é" * 300, "tinker://", "../.."),
    *([], {}, [[]], [{}], [None], [1, "a"], {"": None}, {"type": []}, {"type": {}}, [1.5], [2**70]),
)
_RAW = ("1e999", "-1e999", "NaN", "[" * 200 + "]" * 200, '{"a":1,"a":2}', "1E+2", "\t1")


def mutated(text: bytes, dice: random.Random) -> bytes:
    """`text` with one to three changes; what is no JSON comes back as it was."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    for _ in range(dice.randint(1, 3)):
        value = _changed(value, dice)
    made = json.dumps(value)
    if dice.random() < 0.1:
        made = made.replace(dice.choice(("1", "0", "null", '"x"')), dice.choice(_RAW), 1)
    return made.encode()


def _changed(value: Any, dice: random.Random) -> Any:
    """One change, at the root or, more often, somewhere inside."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        return _in_object(value, dice)
    if isinstance(value, list) and value and dice.random() < 0.9:
        return _in_list(value, dice)
    return dice.choice(ODD)


def _in_object(value: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    made, name = dict(value), dice.choice(list(value))
    kind = dice.randint(0, 9)
    if kind == 0:
        del made[name]
    elif kind == 1:
        made[dice.choice(("x", "type", name + "_"))] = dice.choice(ODD)
    elif kind == 2:
        made[name] = value[dice.choice(list(value))]
    else:
        made[name] = _changed(value[name], dice)
    return made


def _in_list(value: list[Any], dice: random.Random) -> list[Any]:
    made, index = list(value), dice.randrange(len(value))
    kind = dice.randint(0, 5)
    if kind == 0:
        del made[index]
    elif kind == 1:
        made.insert(index, dice.choice(ODD))
    elif kind == 2:
        made += made[:16]
    else:
        made[index] = _changed(value[index], dice)
    return made
