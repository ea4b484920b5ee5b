"""No decoder crashes, hangs or raises anything but its own refusal."""

from __future__ import annotations

import pytest

from fuzz.decoders import DECODERS, attack


@pytest.mark.parametrize("name", list(DECODERS))
def test_damaged_input_is_read_or_refused(name: str) -> None:
    assert 0 < attack(name, seed=1, count=3000) < 3000
