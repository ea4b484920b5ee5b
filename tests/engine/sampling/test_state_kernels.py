"""Recurrent layers of a sampler's steps by kernels move states as the CPU's steps do.

On a machine without a GPU `test_interpreted.py` runs them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from support.interpreted import DEVICE, here
from tinkex.engine.model.families import parse_config
from tinkex.engine.sampling.cache.recurrent_states import SequenceStates, StepRecurrence

CPU = torch.device("cpu")

SHAPE = {
    "model_type": "qwen3_5_text", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
    "linear_value_head_dim": 20, "linear_conv_kernel_dim": 4, "max_position_embeddings": 512,
}  # fmt: skip


@here
def test_chunks_and_single_tokens_move_states_alike() -> None:
    """Chunks of several sequences, then a token of each, from states that lie scattered; a row
    that only pads moves nobody's state."""
    from tinkex.engine.sampling.cache.device_states import ChunkRecurrence, TokenRecurrence

    config = parse_config(SHAPE)
    ours, theirs = (SequenceStates(config, 5, 1, d, torch.float32) for d in (DEVICE, CPU))
    places, lengths = [4, 0, 2], [70, 1, 33]
    chunks = run(ChunkRecurrence(ours, places, lengths, DEVICE), config, sum(lengths), DEVICE, 1)
    steps = run(StepRecurrence(theirs, places, lengths, CPU), config, sum(lengths), CPU, 1)
    close(chunks, steps)
    padded = torch.tensor([*places, ours.scratch], dtype=torch.int32, device=DEVICE)
    tokens = run(TokenRecurrence(ours, padded), config, 4, DEVICE, 2)[:3]
    close(tokens, run(StepRecurrence(theirs, places, [1] * 3, CPU), config, 4, CPU, 2)[:3])
    for layer in config.recurrent:
        close(ours.matrices[layer][:6], theirs.matrices[layer][:6])
        close(ours.windows[layer][:6], theirs.windows[layer][:6])


def run(recur: Any, config: Any, tokens: int, device: torch.device, seed: int) -> Tensor:
    """What a recurrent layer finds, with decays that leave next to nothing and such that do not."""
    layer = 1
    mixer = config.recurrent[layer]
    channels = random(tokens, mixer.channels, seed=seed).to(device)
    weight = random(mixer.channels, 4, seed=9).to(device)
    q, k, v = recur.heads(layer, channels, weight, mixer)
    decay = -random(tokens, 4, seed=seed + 3).exp() * torch.tensor([0.01, 0.1, 4.0, 9.0])
    write = random(tokens, 4, seed=seed + 4).sigmoid()
    with torch.no_grad():
        found: Tensor = recur.delta(layer, q, k, v, decay.to(device), write.to(device))
    return found


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found.cpu(), wanted.cpu(), rtol=1e-4, atol=1e-5)
