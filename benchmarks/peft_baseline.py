"""A plain transformers + PEFT training step as most scripts write it: padded, summed, AdamW."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers
from numpy.typing import NDArray

MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]


class PeftTrainer:
    """One adapter on one model; sequences are padded to the longest."""

    def __init__(
        self, folder: Path, rank: int, recompute: bool = False,
        dtype: torch.dtype = torch.float32, device: torch.device | None = None,
        config: peft.LoraConfig | None = None,
    ) -> None:  # fmt: skip
        transformers.logging.set_verbosity_error()
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        model.to(device or "cpu")
        self._device = model.device
        config = config or peft.LoraConfig(r=rank, lora_alpha=32, target_modules=MODULES)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._model: Any = peft.get_peft_model(model, config)
        self._model.train()
        if recompute:
            self._model.gradient_checkpointing_enable({"use_reentrant": False})
        trained = [p for p in self._model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.95), eps=1e-12)

    def evaluating(self) -> Any:
        """The model with its adapter, from now on without what only training needs."""
        return self._model.eval()

    def step(self, sequences: Sequence[NDArray[np.int64]]) -> float:
        """Forward, backward and update on next-token prediction; returns the summed loss."""
        loss = self.gradients(sequences)
        self.update()
        return loss

    def gradients(self, sequences: Sequence[NDArray[np.int64]]) -> float:
        """Forward and backward alone; returns the summed loss."""
        width = max(len(tokens) for tokens in sequences)
        ids = torch.zeros(len(sequences), width, dtype=torch.long)
        labels = torch.full_like(ids, -100)
        for row, tokens in enumerate(sequences):
            ids[row, : len(tokens)] = torch.from_numpy(tokens)
            labels[row, : len(tokens) - 1] = torch.from_numpy(tokens[1:])
        mask = (torch.arange(width) < torch.tensor([[len(t)] for t in sequences])).long()
        ids, labels, mask = (x.to(self._device) for x in (ids, labels, mask))
        logits = self._model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
        )
        loss.backward()
        return float(loss.detach())

    def update(self) -> None:
        """Apply and clear the gradients."""
        self._optimizer.step()
        self._optimizer.zero_grad()
