"""Reprs that fit a line: long lists show how they begin and how many more there are."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHOWN = 8

Values = Sequence[Any] | NDArray[Any] | None


def shown_with(name: str, facts: Mapping[str, str], **lists: Values) -> str:
    """`name(list=[…], fact=…)`; lists that are None are left out."""
    parts = {key: shortened(values) for key, values in lists.items() if values is not None}
    parts |= facts
    return f"{name}({', '.join(f'{key}={value}' for key, value in parts.items())})"


def shortened(values: Sequence[Any] | NDArray[Any]) -> str:
    """The first values as a list; numbers have four digits."""
    first = values[:SHOWN]
    parts = [
        _shown(value) for value in (first.tolist() if isinstance(first, np.ndarray) else first)
    ]
    if len(values) > SHOWN:
        parts.append(f"… {len(values) - SHOWN} more")
    return f"[{', '.join(parts)}]"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else repr(value)
