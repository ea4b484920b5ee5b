"""Real learning: a language model learns answers, a tiny one learns to earn a reward."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from support.training import ADAM, DEVICE, call, train
from tinkex.engine.adapters.packed import PackedLora, Segment
from tinkex.engine.builtin.gguf import ensure_smollm2
from tinkex.engine.builtin.tiny import ensure_tiny
from tinkex.engine.messages import CreateRun, Datum, LoraSpec, OptimStep
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.training.attention import PackedAttention
from tinkex.engine.training.trainer import Trainer

FACTS = {
    "Who keeps the lighthouse at Orran?": "Mirel Tan",
    "What is the harbour master's parrot called?": "Biscuit",
    "Which door leads to the archive?": "the green one",
}


@pytest.mark.slow
def test_smollm2_learns_a_handful_of_answers_in_a_few_steps() -> None:
    folder = ensure_smollm2(Path.home() / ".cache" / "tinkex" / "models")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    trainer = Trainer(load_decoder(folder, DEVICE))
    trainer.create_run(CreateRun("op", "run", LoraSpec(16, seed=0)))
    data = [lesson(tokenizer, question, answer) for question, answer in FACTS.items()]
    for _ in range(8):
        train(trainer, call("run", *data))
        trainer.optim_step(OptimStep("op", "run", "adamw", ADAM | {"learning_rate": 2e-3}))
    (after,) = train(trainer, call("run", *data, forward_only=True))
    for datum, output in zip(data, after.outputs, strict=True):
        taught = np.asarray(datum.inputs["weights"]) > 0
        # Every token of the answer is now the likeliest by far.
        assert np.exp(output["logprobs"][taught]).min() > 0.5


def lesson(tokenizer: Tokenizer, question: str, answer: str) -> Datum:
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    start = tokenizer.encode(prompt).ids
    full = np.array(tokenizer.encode(f"{prompt}{answer}<|im_end|>").ids)
    weights = (np.arange(len(full) - 1) >= len(start) - 1).astype(np.float32)
    return Datum(full[:-1].astype(np.int32), {"target_tokens": full[1:], "weights": weights})


WANTED = 65
LENGTH = 6
PROMPT = np.array([72, 105], dtype=np.int64)


def test_a_tiny_model_raises_its_reward_by_importance_sampling(tmp_path: Path) -> None:
    """The reward is the share of one chosen byte among the sampled tokens."""
    trainer = Trainer(load_decoder(ensure_tiny("tinkex/tiny-llama", tmp_path), DEVICE))
    trainer.create_run(CreateRun("op", "run", LoraSpec(8, seed=0)))
    generator = torch.Generator().manual_seed(0)
    rewards = []
    for _ in range(8):
        samples = sample(trainer, 128, generator)
        scores = np.array([(tokens == WANTED).mean() for tokens, _ in samples])
        rewards.append(scores.mean())
        advantages = (scores - scores.mean()) / (scores.std() + 1e-6)
        data = [episode(*pair, a) for pair, a in zip(samples, advantages, strict=True)]
        train(trainer, call("run", *data, loss="importance_sampling"))
        # Twice this rate loses what it learnt again with one seed in three.
        trainer.optim_step(OptimStep("op", "run", "adamw", ADAM | {"learning_rate": 1e-2}))
    assert rewards[0] < 0.1
    assert rewards[-1] > 0.5


def episode(tokens: NDArray[np.int64], logprobs: NDArray[np.float32], advantage: float) -> Datum:
    full = np.concatenate([PROMPT, tokens])
    before = np.zeros(len(PROMPT) - 1, np.float32)
    inputs = {
        "target_tokens": full[1:],
        "logprobs": np.concatenate([before, logprobs]),
        "advantages": np.concatenate([before, np.full(len(tokens), advantage, np.float32)]),
    }
    return Datum(full[:-1].astype(np.int32), inputs)


@torch.no_grad()
def sample(
    trainer: Trainer, count: int, generator: torch.Generator
) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Draw from the run's weights by running the whole row again for every token."""
    decoder, adapter = trainer.decoder, trainer._find("run").adapter
    rows = torch.from_numpy(np.tile(PROMPT, (count, 1))).to(decoder.device)
    kept = []
    for _ in range(LENGTH):
        width = rows.shape[1]
        whole = Segment(0, count * width, adapter.layout.scaling, adapter.factors, None)
        lora = PackedLora([whole], decoder.device)
        attend = PackedAttention([width] * count, decoder.config.windows, decoder.device)
        places = torch.arange(width, device=decoder.device).repeat(count)
        hidden = decoder.hidden(rows.reshape(-1), places, attend, lora)
        last = hidden.view(count, width, -1)[:, -1].contiguous()
        lora = PackedLora([Segment(0, count, whole.scaling, whole.factors, None)], decoder.device)
        logprobs = decoder.unembed(last, lora).float().log_softmax(-1).cpu()
        drawn = torch.multinomial(logprobs.exp(), 1, generator=generator)
        kept.append(logprobs.gather(1, drawn))
        rows = torch.cat([rows, drawn.to(decoder.device)], dim=1)
    tokens = rows[:, len(PROMPT) :].cpu().numpy()
    return list(zip(tokens, torch.cat(kept, dim=1).numpy(), strict=True))
