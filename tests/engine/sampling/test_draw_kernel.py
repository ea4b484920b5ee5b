"""The draw kernel draws what `Drawer` draws, of the ids that a row's mask leaves.

On a machine without a GPU `test_interpreted.py` runs it.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.interpreted import DEVICE, here
from tinkex.engine.sampling.draw import SAMPLE, Drawer, Rule, draw_key

HEATS = (0.0, 1.0, 0.7, 1.5)


@here
@pytest.mark.parametrize("vocab", [40, 2048, 5001])
def test_rows_draw_from_what_their_masks_leave_and_others_from_all(vocab: int) -> None:
    from tinkex.engine.kernels import draw as draw_kernel

    rows = 12
    numbers = np.random.default_rng(vocab)
    logits = torch.from_numpy(numbers.normal(0, 3, (rows, vocab)).astype(np.float32)).to(DEVICE)
    keys = [draw_key(3, SAMPLE, row, 7) for row in range(rows)]
    heats = [HEATS[row % len(HEATS)] for row in range(rows)]
    kept = numbers.random((rows, vocab)) < 0.1
    kept[:, vocab // 2] = True
    masked = [row % 3 != 0 for row in range(rows)]
    drawer = Drawer(vocab, DEVICE)

    found = draw_kernel.draw(
        logits,
        drawer.ids,
        torch.tensor(keys, dtype=torch.int32, device=DEVICE).T.contiguous(),
        torch.tensor(heats, device=DEVICE).view(torch.int32),
        torch.tensor(masked, dtype=torch.int32, device=DEVICE),
        words_of(kept).to(DEVICE),
    )

    allowed = torch.from_numpy(kept | ~np.array(masked)[:, None]).to(DEVICE)
    scores = logits.masked_fill(~allowed, -torch.inf)
    wanted = drawer.draw(scores, [Rule(heat, -1, 1.0) for heat in heats], keys)
    assert found[0].tolist() == wanted.tolist()
    own = logits.log_softmax(-1).gather(1, wanted[:, None])[:, 0]
    torch.testing.assert_close(found[1].view(torch.float32), own, rtol=1e-5, atol=1e-5)


def words_of(kept: np.ndarray) -> torch.Tensor:
    """Bits in int32 words, the last of a row filled up."""
    rows, vocab = kept.shape
    bits = np.zeros((rows, -(-vocab // 32) * 32), np.uint8)
    bits[:, :vocab] = kept
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))
