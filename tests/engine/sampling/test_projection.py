"""Products of a step's rows: each row with its own version, however the versions lie."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tinkex.engine.model.decoder import Weights
from tinkex.engine.model.products import FrozenProducts
from tinkex.engine.sampling.adapters import Version
from tinkex.engine.sampling.projection import Projection, Span, Stacks
from tinkex.engine.sampling.slot_products import Part

IN, OUT = 24, 40
LAYOUTS = {
    "one": [(0, 3)],
    "two": [(0, 3), (3, 9)],
    "side by side": [(0, 2), (2, 4), (4, 6), (6, 8)],
    "side by side after base rows": [(3, 5), (5, 7), (7, 9)],
    "a gap of base rows": [(0, 2), (2, 3), (4, 6)],
    "of many lengths": [(0, 1), (1, 5), (5, 6), (6, 9)],
    "one too long for the stack": [(0, 2), (2, 30), (30, 32), (32, 34)],
}


def _version(number: int) -> Version:
    draw = torch.Generator().manual_seed(number)
    rank = 2 + number
    factors = (torch.randn(IN, rank, generator=draw), torch.randn(rank, OUT, generator=draw))
    return Version(number, "", {(0, "o_proj"): (Part(*factors),)})


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_every_row_gets_its_own_version_and_the_others_none(layout: str) -> None:
    spans = [Span(a, b, _version(i)) for i, (a, b) in enumerate(LAYOUTS[layout], 1)]
    rows = spans[-1].stop + 2
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(rows, IN, generator=draw), torch.randn(OUT, IN, generator=draw)
    frozen = FrozenProducts(Weights(weight, (), weight[0], weight))
    projection = Projection(frozen, spans, Stacks(), torch.device("cpu"))
    found = projection.project(0, "o_proj", x, weight, None)
    expected = F.linear(x, weight)
    for span in spans:
        assert span.version.products is not None
        (part,) = span.version.products[0, "o_proj"]
        expected[span.start : span.stop] += x[span.start : span.stop] @ part.a @ part.b
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)
