"""Small models that engine tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.hf_models import save_reference
from support.training import DEVICE
from tinkex.engine.messages import CreateRun, LoraSpec
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.loading import load_decoder
from tinkex.engine.training.trainer import Trainer


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tiny tensors gain nothing from threads, and threads that wait spin on shared cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder: Path = tmp_path_factory.mktemp("llama")
    save_reference("llama", folder)
    return load_decoder(folder, DEVICE)


@pytest.fixture
def trainer(decoder: Decoder) -> Trainer:
    """One run named "run", of rank 8."""
    made = Trainer(decoder)
    made.create_run(CreateRun("op", "run", LoraSpec(8, seed=1)))
    return made
